"""What a call of a model leaves behind outside the model, in class attributes and module globals, and how it is put back.

Export runs such writes once, while tracing, and leaves fake tensors behind; the graph would never make them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from .attributes import Content, fingerprint
from .consumers import names_in

_ABSENT = object()
_LOOKED_INTO = (int, float, complex, str, bytes, type(None), dict, list, tuple, deque, set, frozenset, torch.Tensor)

Place = tuple[type | dict[str, Any], str]
"""A class, or the globals of a module, and a name in it."""


class SurroundingsWatch:
    """Sees what a call of the model writes to attributes of its modules' classes and to globals its code names; undoes it.

    Not looked at: torch's own classes and functions, the inside of objects that are no containers, and whatever other code
    than that of forward, and the functions and methods it names, writes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._classes = {each for module in model.modules() for each in type(module).__mro__ if not _is_foreign(each)}
        self._globals = list(dict.fromkeys(_globals_named(model)))
        held = [(place, _read(place)) for place in self._places()]
        self._before = {_key(place): (value, _mark(value)) for place, value in held}
        self._content = [Content(value) for _, value in held if isinstance(value, dict | list | deque | set | torch.Tensor)]

    def _places(self) -> list[Place]:
        attributes = [(each, name) for each in self._classes for name in vars(each) if not name.startswith(("__", "_abc_"))]
        return [*attributes, *((namespace.content, name) for namespace, name in self._globals)]

    def restore(self) -> list[str]:
        """Undo every write since construction; returns what was written, in words."""
        found = []
        removed = [(each, name) for each in self._classes for name in self._names_before(each) if name not in vars(each)]
        for place in [*self._places(), *removed]:
            value, mark = self._before.get(_key(place), (_ABSENT, None))
            if _mark(_read(place)) != mark:
                found.append(_described(place))
                _write(place, value)
        for content in self._content:
            content.restore()
        return sorted(found)

    def _names_before(self, owner: type) -> list[str]:
        return [name for place, name in self._before if place == id(owner)]


class _Namespace:
    """The globals of one module, hashable by identity."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def __hash__(self) -> int:
        return id(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Namespace) and self.content is other.content


def _globals_named(model: nn.Module) -> Iterator[tuple[_Namespace, str]]:
    """The globals named by the code of every forward, and of the functions and methods that code names in turn."""
    stack: list[tuple[FunctionType, type]] = []
    for module in model.modules():
        held = [type(module).forward, *vars(module).values()]
        functions = [each.__func__ if isinstance(each, MethodType) else each for each in held]
        stack += [(each, type(module)) for each in functions if isinstance(each, FunctionType)]
    seen: set[tuple[FunctionType, type]] = set()
    while stack:
        function, owner = stack.pop()
        if (function, owner) in seen or _is_foreign(function):
            continue
        seen.add((function, owner))
        filled = [cell for cell in function.__closure__ or () if cell != CellType()]
        named = [getattr(function, "__wrapped__", None), *(cell.cell_contents for cell in filled)]
        for name in names_in(function.__code__):
            yield _Namespace(function.__globals__), name
            named += [function.__globals__.get(name), getattr(owner, name, None)]
        stack += [(each, owner) for each in named if isinstance(each, FunctionType)]


def _is_foreign(code: type | FunctionType) -> bool:
    return str(code.__module__).split(".")[0] in ("torch", "builtins", "typing", "abc")


def _key(place: Place) -> tuple[int, str]:
    return id(place[0]), place[1]


def _read(place: Place) -> Any:
    owner, name = place
    return (vars(owner) if isinstance(owner, type) else owner).get(name, _ABSENT)


def _write(place: Place, value: Any) -> None:
    owner, name = place
    if isinstance(owner, type):
        delattr(owner, name) if value is _ABSENT else setattr(owner, name, value)
    elif value is _ABSENT:
        del owner[name]
    else:
        owner[name] = value


def _mark(value: Any) -> Any:
    if value is _ABSENT:
        return None
    return fingerprint(value) if isinstance(value, _LOOKED_INTO) else id(value)


def _described(place: Place) -> str:
    owner, name = place
    if isinstance(owner, type):
        return f"{owner.__qualname__}.{name} (an attribute of the class)"
    return f"{name} (a global of {owner.get('__name__')})"
