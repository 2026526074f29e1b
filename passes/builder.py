"""The one way passes add nodes: traced value, source line, module path and origins are filled in here."""

from __future__ import annotations

import operator
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .._torch import as_fake, fake_mode_of
from ..analysis.provenance import ORIGINS
from ..errors import PassError
from .structure import recompute
from .verification.bits import same_bits


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
        node = self._create("call_function", target, args, kwargs)
        node.meta["val"] = recompute(node, mode=self._mode)
        return node

    def number(self, target: Any, *args: Any) -> Node:
        """Arithmetic on sizes (`operator.mul` and the like)."""
        node = self._create("call_function", target, args, {})
        node.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, Node) else arg for arg in args))
        return node

    def item(self, pieces: Node, place: int) -> Node:
        """One of the results of an operation that has several."""
        node = self._create("call_function", operator.getitem, (pieces, place), {})
        node.meta["val"] = pieces.meta["val"][place]
        return node

    def read(self, name: str) -> Node:
        """A read of state the working copy holds."""
        node = self._create("get_attr", name, (), {})
        node.meta["val"] = as_fake(self._mode, attrgetter(name)(self.module))
        return node

    def state(self, name: str, tensor: torch.Tensor) -> Node:
        """A read of new state `name`; where it exists already, with equal content, of that."""
        provide(self.module, name, tensor)
        return self.read(name)

    def _create(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        with self.module.graph.inserting_before(self._anchor):
            node = self.module.graph.create_node(op, target, args, kwargs)
        for key in ("stack_trace", "nn_module_stack"):
            if key in self._anchor.meta:
                node.meta[key] = self._anchor.meta[key]
        node.meta[ORIGINS] = self._origins
        return node


def provide(module: GraphModule, name: str, tensor: torch.Tensor) -> None:
    """Register `tensor` as the persistent buffer `name`, making the submodules on the way.

    Raises:
        PassError: there is other state of this name.
    """
    path, _, leaf = name.rpartition(".")
    if path and path not in dict(module.named_modules()):
        module.add_submodule(path, torch.nn.Module())
    holder = module.get_submodule(path)
    if hasattr(holder, leaf) and not same_bits(getattr(holder, leaf), tensor):
        raise PassError(f"there is other state {name} already")
    holder.register_buffer(leaf, tensor)
