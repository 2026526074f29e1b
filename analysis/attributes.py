"""What a call of a model leaves behind in its attributes, buffers and parameters, and how it is put back.

Export drops such writes silently: the graph would never make them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from .parameter_watch import ParameterWatch

_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_OPAQUE = (nn.Module, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, torch.dtype, torch.device)
_HIDDEN = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class AttributeWatch:
    """Sees what a call of the model writes, and undoes it.

    Args:
        model: the model to watch.
        written: names of the buffers to save and put back; None for all.

    Attributes:
        buffers: the buffers as they were.
        parameters: a context the call is to be made in, so that its writes into parameters can be undone as well.
    """

    def __init__(self, model: nn.Module, written: Collection[str] | None = None) -> None:
        self._modules = [(path, module, _attributes(module)) for path, module in model.named_modules()]
        self._registered = [(module, dict(module._parameters), dict(module._buffers)) for _, module, _ in self._modules]
        self._before = {(path, name): fingerprint(value) for path, _, held in self._modules for name, value in held.items()}
        values = [value for _, _, held in self._modules for value in held.values()]
        self._content = [Content(value) for value in {id(v): v for v in values if _can_change(v)}.values()]
        self.buffers = {
            path: buffer.detach().clone() for path, buffer in model.named_buffers() if written is None or path in written
        }
        self.parameters = ParameterWatch(model)
        self._model = model

    def restore(self) -> list[str]:
        """Undo every write since construction; returns the attributes written, as `path.attribute`.

        Buffers that were written or replaced by others of their shape are put back and not among them: a graph makes
        such writes itself. Nor are parameters, see `parameters.saved`.
        """
        found: list[str] = []
        for path, module, held in self._modules:
            now = _attributes(module)
            for name in sorted(held.keys() | now.keys()):
                if name not in now or fingerprint(now[name]) != self._before.get((path, name)):
                    found.append(f"{path}.{name}".lstrip("."))
            for name in now.keys() - held.keys():
                del vars(module)[name]
            vars(module).update(held)
        for content in self._content:
            content.restore()
        found += self._restore_registered()
        self.parameters.restore()
        with torch.no_grad():
            for path, buffer in self._model.named_buffers():
                if path in self.buffers:
                    buffer.copy_(self.buffers[path])
        return found

    def _restore_registered(self) -> list[str]:
        found = []
        for (path, _, _), (module, parameters, buffers) in zip(self._modules, self._registered, strict=True):
            now = dict(module._buffers)
            lost = [name for name, value in module._parameters.items() if parameters.get(name) is not value]
            lost += [name for name in now if name not in buffers or (buffers[name] is None) != (now[name] is None)]
            found += [f"{path}.{name}".lstrip(".") for name in lost]
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)
        return found


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Attributes outside the state machinery and the hooks of nn.Module."""
    return {name: value for name, value in vars(module).items() if name not in _HIDDEN and "_hooks" not in name}


def fingerprint(value: Any, depth: int = 4) -> Any:
    """What an object holds, comparable: plain values by value, containers by content, anything else by identity."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    items = _items(value) if depth else None
    if items is None:
        return id(value)
    held = [(repr(key), fingerprint(item, depth - 1)) for key, item in items]
    return type(value).__name__, sorted(held, key=repr) if isinstance(value, set | frozenset) else held


def _items(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container or simple object holds; None where it is not looked into."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple | deque | set | frozenset):
        return [(None, item) for item in value]
    if isinstance(value, (*_PLAIN, *_OPAQUE, torch.Tensor)) or not hasattr(value, "__dict__"):
        return None
    return list(vars(value).items())


def _can_change(value: Any) -> bool:
    return not isinstance(value, (*_PLAIN, *_OPAQUE))


class Content:
    """The content of a mutable object and of what it holds, three levels deep, to be put back in place."""

    def __init__(self, value: Any, depth: int = 3) -> None:
        self._value = value
        self._mark = fingerprint(value)
        self._copy = value.detach().clone() if isinstance(value, torch.Tensor) else None
        items = _items(value) if depth else None
        self._items = list(items or ())
        self._parts = [Content(item, depth - 1) for _, item in self._items if _can_change(item)]

    def restore(self) -> None:
        value = self._value
        if fingerprint(value) == self._mark:
            return
        if self._copy is not None:
            with torch.no_grad():
                value.copy_(self._copy)
        elif isinstance(value, dict):
            value.clear()
            value.update(self._items)
        elif isinstance(value, list | deque | set):
            value.clear()
            (value.update if isinstance(value, set) else value.extend)(item for _, item in self._items)
        elif self._items and hasattr(value, "__dict__"):
            vars(value).clear()
            vars(value).update(self._items)
        for part in self._parts:
            part.restore()
