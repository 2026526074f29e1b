"""The one way passes add nodes: traced value, source line, module path and origins are filled in here."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from .._torch import fake_mode_of
from .structure import ORIGINS, recompute

class Builder:
    """Adds nodes in front of `anchor`, the node they stand for.

    Args:
        module: the working copy.
        anchor: where they go, and whose source line, module path and fake mode they inherit.
        pass_name: recorded as their origin.
    """

    def __init__(self, module: GraphModule, anchor: Node, pass_name: str) -> None:
        self.module = module
        self._anchor = anchor
        self._mode = fake_mode_of(anchor.meta["val"])
        self._origins = (pass_name, (anchor.name,))

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """A call of an ATen or foldfx operation, its traced value computed."""
        with self.module.graph.inserting_before(self._anchor):
            node = self.module.graph.call_function(target, args, kwargs)
        self._inherit(node)
        node.meta["val"] = recompute(node)
        return node

    def number(self, target: Any, *args: Any) -> Node:
        """Arithmetic on sizes (`operator.mul` and the like)."""
        with self.module.graph.inserting_before(self._anchor):
            node = self.module.graph.call_function(target, args)
        self._inherit(node)
        node.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, Node) else arg for arg in args))
        return node

    def declare(self, name: str, shape: tuple[int, ...], like: torch.Tensor) -> Node:
        """A read of new state `name`, of `shape` and with the dtype and device of `like`.

        Its tensor is on the meta device until the pass has decided to go on and calls `provide`.
        """
        provide(self.module, name, torch.empty(shape, dtype=like.dtype, device="meta"))
        with self.module.graph.inserting_before(self._anchor):
            node = self.module.graph.get_attr(name)
        self._inherit(node)
        with self._mode:
            node.meta["val"] = torch.empty(shape, dtype=like.dtype, device=like.device)
        return node

    def _inherit(self, node: Node) -> None:
        for key in ("stack_trace", "nn_module_stack"):
            if key in self._anchor.meta:
                node.meta[key] = self._anchor.meta[key]
        node.meta[ORIGINS] = self._origins


def provide(module: GraphModule, name: str, tensor: torch.Tensor) -> None:
    """Register `tensor` as the persistent buffer `name`, making the submodules on the way."""
    path, _, leaf = name.rpartition(".")
    if path and path not in dict(module.named_modules()):
        module.add_submodule(path, torch.nn.Module())
    module.get_submodule(path).register_buffer(leaf, tensor)
