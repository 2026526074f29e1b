"""A program that sets observables: attributes that the original model's forward writes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from torch.fx import GraphModule


class ObservedProgram(nn.Module):
    """A program called like the original model: it returns what that returns, and sets the observables, at their paths.

    It is the program's module under another `forward`: both have one `__dict__`, so state, submodules, hooks and mode are the
    same objects under the same names. What is not found here is looked up there: `graph`, `code`, `recompile`.

    Args:
        program: returns a pair: what the original returns, and a dict of the observables' values by name; kept. Modules
            on the way to an observable that it has not are added to it.
        names: the observables, each as module path and attribute: "layers.3.mlp.router_logits".
    """

    program: GraphModule
    names: tuple[str, ...]

    def __new__(cls, program: GraphModule, names: tuple[str, ...]) -> ObservedProgram:
        """Each is the only one of its class, which holds what the program's `__dict__` must not."""
        return object.__new__(type(cls.__name__, (cls,), {"program": program, "names": names}))

    def __init__(self, program: GraphModule, names: tuple[str, ...]) -> None:
        object.__setattr__(self, "__dict__", program.__dict__)
        for name in names:
            owner: nn.Module = program
            for part in name.split(".")[:-1]:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module().train(program.training))
                owner = owner.get_submodule(part)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are made of the program."""
        return ObservedProgram, (self.program, self.names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # among them how to copy: the program's way would leave the observables out
            raise AttributeError(name)
        return getattr(self.program, name)

    @property
    def forward(self) -> Callable[..., Any]:  # type: ignore[override]
        """The program's forward, with its signature."""

        @wraps(self.program.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            returned, attributes = self.program.forward(*args, **kwargs)
            for name, value in attributes.items():
                path, _, leaf = name.rpartition(".")
                vars(self.program.get_submodule(path))[leaf] = value
            return returned

        return forward
