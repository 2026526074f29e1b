"""What objects hold: to see whether a call has changed it, to put it back, and to find the modules among it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from logging import Logger
from types import BuiltinMethodType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_OPAQUE = (nn.Module, type, ModuleType, FunctionType, torch.dtype, torch.device, torch.fx.Graph, Logger)
_TORCH_AND_ITS_OWN = ("torch", "sympy", "mpmath", "numpy", "networkx", "triton", "foldfx")
_HIDDEN = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


def fingerprint(value: Any, depth: int = 4) -> Any:
    """What an object holds, comparable: plain values by value, containers by content, anything else by identity."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    held = items(value) if depth else None
    if held is None:
        return id(value)
    marks = [(repr(key), fingerprint(item, depth - 1)) for key, item in held]
    return type(value).__name__, sorted(marks, key=repr) if isinstance(value, set | frozenset) else marks


def items(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container, a simple object or that of a bound method holds; None where it is not looked into."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple | deque | set | frozenset):
        return [(None, item) for item in value]
    if isinstance(value, MethodType | BuiltinMethodType):
        return [(value.__name__, value.__self__)]
    if isinstance(value, (*_PLAIN, *_OPAQUE, torch.Tensor)):
        return None
    slots = [name for name in _slots(type(value)) if hasattr(value, name)]
    if not slots and not hasattr(value, "__dict__"):
        return None
    return [*getattr(value, "__dict__", {}).items(), *((name, getattr(value, name)) for name in slots)]


def _slots(kind: type) -> list[str]:
    """The attributes that objects of a class keep in slots; none of the standard library's, which caches in them."""
    written = [each for each in kind.__mro__ if not is_foreign(each)]
    return [name for each in written for name, held in vars(each).items() if isinstance(held, MemberDescriptorType)]


def is_foreign(code: type | FunctionType) -> bool:
    """Whether torch, what torch computes with, foldfx or the standard library defines it."""
    root = str(code.__module__).partition(".")[0]
    return root in _TORCH_AND_ITS_OWN or root in sys.stdlib_module_names


def can_change(value: Any) -> bool:
    """Whether an object's content may change in place."""
    return not isinstance(value, (*_PLAIN, *_OPAQUE))


class Content:
    """The content of a mutable object and of what it holds, three levels deep, to be put back in place."""

    def __init__(self, value: Any, depth: int = 3) -> None:
        self._value = value
        self._mark = fingerprint(value)
        self._copy = value.detach().clone() if isinstance(value, torch.Tensor) else None
        self._items = items(value) if depth else None
        self._parts = [Content(item, depth - 1) for _, item in self._items or () if can_change(item)]

    def restore(self) -> None:
        """Undo every change since construction."""
        value = self._value
        if fingerprint(value) == self._mark:
            return
        if self._copy is not None:
            put_back(value, self._copy)
        elif self._items is not None:
            _refill(value, self._items)
        for part in self._parts:
            part.restore()


def put_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write a copy of a tensor back into it; what is expanded in memory is written once."""
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())
    with torch.no_grad():
        tensor[once].copy_(value[once])


def _refill(value: Any, held: list[tuple[Any, Any]]) -> None:
    if isinstance(value, dict):
        value.clear()
        value.update(held)
    elif isinstance(value, list | deque | set):
        value.clear()
        (value.update if isinstance(value, set) else value.extend)(item for _, item in held)
    elif not isinstance(value, tuple | frozenset | MethodType | BuiltinMethodType):
        _set_attributes(value, dict(held))


def _set_attributes(value: Any, held: dict[str, Any]) -> None:
    slots = _slots(type(value))
    if hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update((name, item) for name, item in held.items() if name not in slots)
    for name in slots:
        if name in held:
            object.__setattr__(value, name, held[name])
        elif hasattr(value, name):
            object.__delattr__(value, name)


def attributes(module: nn.Module) -> dict[str, Any]:
    """Attributes outside the state machinery and the hooks of nn.Module."""
    return {name: value for name, value in vars(module).items() if name not in _HIDDEN and "_hooks" not in name}


def reached_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """A model's submodules by path, then the modules that only plain attributes hold, as "blocks[0]", with theirs."""
    found = list(model.named_modules())
    seen = {id(module) for _, module in found}
    for path, module in found:
        for name, value in attributes(module).items():
            for place, held in _modules_in(f"{path}.{name}".lstrip("."), value):
                new = [(at, each) for at, each in held.named_modules(prefix=place) if id(each) not in seen]
                seen |= {id(each) for _, each in new}
                found += new
    return found


def _modules_in(place: str, value: Any, depth: int = 4) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(value, nn.Module):
        yield place, value
    elif depth and not isinstance(value, _PLAIN):
        is_sequence = isinstance(value, list | tuple | deque | set | frozenset)
        for number, (key, item) in enumerate(items(value) or ()):
            inside = f"[{number if is_sequence else repr(key)}]" if is_sequence or isinstance(value, dict) else f".{key}"
            yield from _modules_in(place + inside, item, depth - 1)
