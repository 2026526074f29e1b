"""What the code of a model names: the functions, classes and objects outside it that a call may reach."""

from __future__ import annotations

from functools import _lru_cache_wrapper
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn

from .consumers import names_in
from .contents import can_change, is_foreign, reached_modules

Named = tuple[str, Any, type]
"""A name, its value, and the class whose methods the code may call through `self`."""


class NamedCode:
    """The code of every forward of a model, and what it names in turn.

    Left out are functions, classes and objects of torch, its dependencies and the standard library, and what is named
    through an imported module, as in `helpers.function`.

    Args:
        model: the model itself.

    Attributes:
        modules: modules that globals and closures hold, by name.
        classes: those of modules, of objects named, and those named themselves, with their bases.
        globals: each global named, as (the globals of its module, name).
        cells: the variables of closures, as (cell, name, function).
        defaults: functions with default arguments.
        caches: functions under `functools.lru_cache`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.classes: set[type] = set()
        self.globals: dict[tuple[int, str], dict[str, Any]] = {}
        self.cells: list[tuple[CellType, str, FunctionType]] = []
        self.defaults: list[FunctionType] = []
        self.caches: set[_lru_cache_wrapper[Any]] = set()
        self._met: set[int] = set()
        self._stack: list[tuple[FunctionType, type]] = []
        self._enter(model)
        read: set[tuple[FunctionType, type]] = set()
        while self._stack:
            function, owner = self._stack.pop()
            if (function, owner) not in read and not is_foreign(function):
                read.add((function, owner))
                self._read(function, owner)

    def _enter(self, model: nn.Module) -> None:
        """Take in the code of a module and of those it holds."""
        for _, module in reached_modules(model):
            kind = type(module)
            self._met.add(id(module))
            self.classes.update(_own(kind))
            self._follow([("", value, kind) for value in (kind.forward, *vars(module).values())], [])

    def _read(self, function: FunctionType, owner: type) -> None:
        names = list(dict.fromkeys(names_in(function.__code__)))
        variables = zip(function.__closure__ or (), function.__code__.co_freevars, strict=True)
        filled = [(cell, name, function) for cell, name in variables if cell != CellType()]
        self.cells += filled
        self.defaults += [function] if function.__defaults__ or function.__kwdefaults__ else []
        self.globals |= dict.fromkeys([(id(function.__globals__), name) for name in names], function.__globals__)
        named = [(name, function.__globals__.get(name), owner) for name in names]
        named += [(name, cell.cell_contents, owner) for cell, name, _ in filled]
        self._follow([*named, ("", owner, owner), ("", getattr(function, "__wrapped__", None), owner)], names)

    def _follow(self, named: list[Named], names: list[str]) -> None:
        """Take in values, and what their classes define under the same names, as methods are."""
        met: set[int] = set()
        for name, value, owner in named:
            if id(value) not in met:
                met.add(id(value))
                named += self._take(name, value, owner, names)

    def _take(self, name: str, value: Any, owner: type, names: list[str]) -> list[Named]:
        if isinstance(value, FunctionType):
            self._stack.append((value, owner))
        elif isinstance(value, MethodType | staticmethod | classmethod):
            return [(name, value.__func__, owner)]
        elif isinstance(value, property):
            return [(name, value.fget, owner)]
        elif isinstance(value, _lru_cache_wrapper):
            self.caches.add(value)
            return [(name, value.__wrapped__, owner)]
        elif isinstance(value, nn.Module) and id(value) not in self._met:
            self.modules[name] = value
            self._enter(value)
        elif isinstance(value, type) or can_change(value):
            kind = value if isinstance(value, type) else type(value)
            self.classes.update(_own(kind))
            return [(each, found, kind) for each in (*names, "__call__") if (found := _defined(kind, each)) is not None]
        return []


def _own(kind: type) -> list[type]:
    return [each for each in kind.__mro__ if not is_foreign(each)]


def _defined(kind: type, name: str) -> Any:
    return next((vars(each)[name] for each in _own(kind) if name in vars(each)), None)
