"""What a call writes into parameters, saved at the first write and put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from .._torch import is_overload, storage_key
from .contents import reached_modules


class ParameterWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, saves each parameter just before an operation first writes into its memory.

    Parameters are many and large, and hardly any call writes one: one whose ids have no dimensions may, where an index
    of a weight is a view of it instead of a copy. Version counters would not see writes through `.data`, nor undo any.
    Higher-order operators such as `cond`, whose branches may not write, are not looked into.

    Args:
        model: the model whose parameters are watched.

    Attributes:
        saved: the parameters written, as they were, by name.
    """

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.saved: dict[str, torch.Tensor] = {}
        self._parameters = _parameters(model)
        self._names: dict[tuple[str, int], list[str]] = {}
        for name, parameter in self._parameters.items():
            self._names.setdefault(storage_key(parameter), []).append(name)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether functions that the model compiles are compiled under it as well; others are never again, once seen."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            for name in self._names.get(storage_key(tensor), ()):
                if name not in self.saved:
                    self.saved[name] = self._parameters[name].detach().clone()
        return func(*args, **kwargs)

    def written(self) -> dict[str, torch.Tensor]:
        """What the parameters written hold now, by name."""
        return {name: self._parameters[name].detach().clone() for name in self.saved}

    def restore(self) -> None:
        """Undo the writes."""
        with torch.no_grad():
            for name, value in self.saved.items():
                self._parameters[name].copy_(value)


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Each parameter under its first name, those of modules that are not registered included."""
    named = [pair for path, module in reached_modules(model) for pair in module.named_parameters(path, recurse=False)]
    return {name: parameter for parameter, name in {parameter: name for name, parameter in reversed(named)}.items()}


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    for place, name in _mutable(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                yield each


@cache
def _mutable(func: Any) -> list[tuple[int, str]]:
    """Arguments that an operation writes, by place and name."""
    if not is_overload(func):
        return []
    arguments = enumerate(func._schema.arguments)
    return [(place, each.name) for place, each in arguments if each.alias_info is not None and each.alias_info.is_write]
