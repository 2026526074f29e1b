"""What decides, besides tensors, what a module computes; and the tensors it holds, registered or not."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.fx import GraphModule

from ..._torch import global_hooks, module_hooks, tensor_hooks
from ...analysis.program import named_state

_DEPTH = 4
"""How deep containers in attributes are searched for tensors."""

_REGISTRIES = ("_parameters", "_buffers", "_modules")


def held_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by their names, tied ones by each; then tensors in plain attributes and containers there.

    Fake tensors and other tensor subclasses outside the registered state are left out.
    """
    found = dict(named_state(module))
    registered = {id(tensor) for tensor in found.values()}
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            if name not in _REGISTRIES:
                inside = _tensors(f"{path}.{name}".lstrip("."), value, _DEPTH)
                found |= {place: tensor for place, tensor in inside if id(tensor) not in registered}
    return found


def _tensors(name: str, value: object, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if type(value) in (torch.Tensor, nn.Parameter, nn.Buffer):
        yield name, value  # type: ignore[misc]
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(f"{name}[{key!r}]", item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _tensors(f"{name}[{place}]", item, depth - 1)


def plain_attributes(module: nn.Module) -> dict[str, str]:
    """The class of every submodule, its public attributes that are plain values, those of the class among them, and the code of
    graph modules, by name.

    `training` is not among them: see `disturbances`.
    """
    found: dict[str, str] = {}
    for path, each in module.named_modules():
        values = {"class": type(each).__qualname__, **_public(each)}
        if isinstance(each, GraphModule):
            values["code"] = each.code
        found |= {f"{path}.{name}".lstrip("."): value for name, value in values.items()}
    return found


def _public(module: nn.Module) -> dict[str, str]:
    of_class = {name: value for each in reversed(type(module).__mro__) for name, value in vars(each).items()}
    return {
        name: repr(value)
        for name, value in (of_class | vars(module)).items()
        if not name.startswith("_") and name != "training" and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | complex | str | bytes | torch.dtype)


def disturbances(module: nn.Module) -> list[str]:
    """What makes a call something else than what was verified: training mode, hooks on modules or on their state."""
    training = [path or "<root>" for path, each in module.named_modules() if each.training]
    more = f" and {len(training) - 1} more" if len(training) > 1 else ""
    found = [f"{training[0]}: training mode{more}"] if training else []
    for path, each in module.named_modules():
        found += [f"{path or '<root>'}: hooks ({', '.join(hooks)})"] if (hooks := module_hooks(each)) else []
    found += [f"{name}: autograd hooks" for name, tensor in held_tensors(module).items() if tensor_hooks(tensor)]
    return found + [f"every module: process-wide hooks ({name})" for name in global_hooks()]
