"""What a call of a model leaves behind outside the model, in classes, globals and closures, and how it is put back.

Export runs such writes once, while tracing, and leaves fake tensors behind; the graph would never make them.
"""

from __future__ import annotations

from collections import deque
from types import BuiltinMethodType, CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from .attributes import AttributeWatch
from .contents import Content, can_change, fingerprint, is_foreign
from .named_code import NamedCode

_ABSENT = object()
_LOOKED_INTO = (
    *(int, float, complex, str, bytes, type(None), dict, list, tuple, deque, set, frozenset),
    *(torch.Tensor, SimpleNamespace, MethodType, BuiltinMethodType),
)

Place = tuple[type | dict[str, Any] | CellType | FunctionType, str]
"""A class, the globals of a module, a variable of a closure or a function, and the name of what it holds."""


class SurroundingsWatch:
    """Sees what a call of the model writes to classes, globals and closures that its code names, and undoes it.

    Objects there are looked into, but for torch's and the standard library's: what threads keep for themselves
    (`threading.local`) and context variables are not seen. Nor is what other code than `NamedCode` writes.
    """

    def __init__(self, model: nn.Module) -> None:
        code = NamedCode(model)
        self._classes = code.classes
        self._fixed: list[Place] = [(namespace, name) for (_, name), namespace in code.globals.items()]
        self._fixed += [(cell, f"{name} (in the closure of {function.__qualname__})") for cell, name, function in code.cells]
        self._fixed += [(function, name) for function in code.defaults for name in ("__defaults__", "__kwdefaults__")]
        held = [(place, _read(place)) for place in self._places()]
        self._before = {_key(place): (value, _mark(value)) for place, value in held}
        mutable = {id(value): value for _, value in held if can_change(value) and _is_looked_into(value)}
        self._content = [Content(value) for value in mutable.values()]
        self._modules = AttributeWatch(_holder(code.modules))
        self._computed = [(cache, cache.cache_info().misses) for cache in code.caches]

    def _places(self) -> list[Place]:
        attributes = [(each, name) for each in self._classes for name in vars(each) if not name.startswith(("__", "_abc_"))]
        return [*attributes, *self._fixed]

    def restore(self) -> list[str]:
        """Undo every write since construction; returns what was written, in words."""
        found = [f"{name} (of a module that is global)" for name in self._modules.restore()]
        removed = [(each, name) for each in self._classes for name in self._names_before(each) if name not in vars(each)]
        for place in [*self._places(), *removed]:
            value, mark = self._before.get(_key(place), (_ABSENT, None))
            if _mark(_read(place)) != mark:
                found.append(_described(place))
                _write(place, value)
        for content in self._content:
            content.restore()
        return sorted(found)

    def forget_computed(self) -> None:
        """Empty each `lru_cache` that has computed something since construction: in a trace that is a fake tensor."""
        for cache, misses in self._computed:
            if cache.cache_info().misses != misses:
                cache.cache_clear()

    def _names_before(self, owner: type) -> list[str]:
        return [name for place, name in self._before if place == id(owner)]


def _holder(modules: dict[str, nn.Module]) -> nn.Module:
    """A module that holds others in plain attributes, as globals do."""
    holder = nn.Module()
    vars(holder).update(modules)
    return holder


def _key(place: Place) -> tuple[int, str]:
    return id(place[0]), place[1]


def _read(place: Place) -> Any:
    owner, name = place
    if isinstance(owner, CellType):
        return _ABSENT if owner == CellType() else owner.cell_contents
    if isinstance(owner, FunctionType):
        return getattr(owner, name)
    return (owner if isinstance(owner, dict) else vars(owner)).get(name, _ABSENT)


def _write(place: Place, value: Any) -> None:
    owner, name = place
    if isinstance(owner, CellType):
        owner.cell_contents = value
    elif not isinstance(owner, dict):
        delattr(owner, name) if value is _ABSENT else setattr(owner, name, value)
    elif value is _ABSENT:
        del owner[name]
    else:
        owner[name] = value


def _is_looked_into(value: Any) -> bool:
    return isinstance(value, _LOOKED_INTO) or not is_foreign(type(value))


def _mark(value: Any) -> Any:
    if value is _ABSENT:
        return None
    return fingerprint(value) if _is_looked_into(value) else id(value)


def _described(place: Place) -> str:
    owner, name = place
    if isinstance(owner, CellType):
        return name
    if isinstance(owner, dict):
        return f"{name} (a global of {owner.get('__name__')})"
    return f"{owner.__qualname__}.{name} (an attribute of the {'class' if isinstance(owner, type) else 'function'})"
