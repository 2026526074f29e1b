"""Observables: attributes that forward writes, declared by the user, as further outputs of a call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import nn

from .._torch import tree_flatten
from ..errors import CaptureError, ExampleError
from .attributes import AttributeWatch
from .example import Example
from .surroundings import SurroundingsWatch

_LEAVES = (torch.Tensor, bool, int, float, str, type(None))


class Complete(NamedTuple):
    """What a call returns, and the observables it sets, by name."""

    returned: Any
    attributes: dict[str, Any]


class NotSetInThisCall:
    """Stands in every observable until a call sets it, so that what an earlier call left there is never taken for new."""


class Observed(nn.Module):
    """A model whose calls return `Complete`: what the model returns, and the observables it sets.

    It is the model itself under another `forward`: both have one `__dict__`, so state, submodules, attributes, hooks and
    mode are the same objects under the same names, and what forward writes is seen in both. The observables themselves
    are after a call what they were before it. One that a call does not set is missing from what the call returns.

    Args:
        model: any module; kept.
        names: paths of attributes, as `observed` checked them.
    """

    model: nn.Module
    names: tuple[str, ...]

    def __new__(cls, model: nn.Module, names: tuple[str, ...]) -> Observed:
        """Each is the only one of its class, which holds what the model's `__dict__` must not."""
        return object.__new__(type(cls.__name__, (cls,), {"model": model, "names": names}))

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        object.__setattr__(self, "__dict__", model.__dict__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Observed:
        """Without what calls left in the observables: a value with a gradient history cannot be copied."""
        with self._set_aside():
            return Observed(deepcopy(self.model, memo), self.names)

    @property
    def forward(self) -> Callable[..., Complete]:  # type: ignore[override]
        """The model's forward, with its signature."""

        @wraps(self.model.forward)
        def forward(*args: Any, **kwargs: Any) -> Complete:
            with self._set_aside() as places:
                returned = self.model.forward(*args, **kwargs)
                held = {name: vars(owner).get(leaf, NotSetInThisCall) for name, (owner, leaf) in places.items()}
            return Complete(returned, {name: value for name, value in held.items() if value is not NotSetInThisCall})

        return forward

    @contextmanager
    def _set_aside(self) -> Iterator[dict[str, tuple[nn.Module, str]]]:
        """Where the observables are; `NotSetInThisCall` is in them on entry, and what they hold now is again on exit."""
        places = {name: _place(self.model, name) for name in self.names}
        before = {name: vars(owner)[leaf] for name, (owner, leaf) in places.items() if leaf in vars(owner)}
        for owner, leaf in places.values():
            vars(owner)[leaf] = NotSetInThisCall
        try:
            yield places
        finally:
            for name, (owner, leaf) in places.items():
                vars(owner).pop(leaf, None)
                if name in before:
                    vars(owner)[leaf] = before[name]


def observed(model: nn.Module, names: Collection[str]) -> nn.Module:
    """The model, or where there are names, `Observed` of it.

    Args:
        model: any module.
        names: attributes that its forward writes, each as module path and attribute: "layers.3.mlp.router_logits".

    Raises:
        CaptureError: a name is given twice, in whatever spelling, has no such module, or is that of a parameter, buffer or
            submodule.
        TypeError: `names` is one string, or holds something else than strings.
    """
    listed = None if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if listed is None or not all(isinstance(name, str) for name in listed):
        raise TypeError(f"observables is {names!r}; pass a list of names, such as ['layers.3.mlp.router_logits']")
    places: dict[tuple[int, str], str] = {}
    for name in listed:
        owner, leaf = _place(model, name)
        if (other := places.setdefault((id(owner), leaf), name)) != name or listed.count(name) > 1:
            raise CaptureError(f"the observables '{other}' and '{name}' are one attribute; declare it once")
        for kind, held in (("parameter", owner._parameters), ("buffer", owner._buffers), ("submodule", owner._modules)):
            if leaf in held:
                raise CaptureError(
                    f"the observable '{name}' is a registered {kind}; observables are plain attributes that forward writes. "
                    "Buffers that a call writes are compared and kept without being declared"
                )
    return Observed(model, listed) if listed else model


def underlying(model: nn.Module) -> nn.Module:
    """The model itself, whose class and methods say what its code names."""
    return model.model if isinstance(model, Observed) else model


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds an observable, and the attribute's name there."""
    path, _, leaf = name.rpartition(".")
    try:
        return model.get_submodule(path), leaf
    except AttributeError as error:
        raise CaptureError(
            f"the observable '{name}' is nowhere in {type(model).__name__}: {error}. Write a module's path and an attribute"
        ) from error


def measure_observables(model: nn.Module, example: Example) -> Mapping[str, int]:
    """Run the model and see that its calls set every observable, and set it anew; everything is put back.

    Args:
        model: `observed` of a model; any other module has no observables.
        example: one call.

    Returns:
        Of how many leaves each observable's value is.

    Raises:
        CaptureError: a call does not set one, or reads what an earlier call left there, or it holds something else than
            tensors, numbers, strings or None, or trees of these.
        ExampleError: the model itself fails.
    """
    if not isinstance(model, Observed):
        return {}
    plain, written = _call_plainly(model, example)
    _refuse_unwritten([name for name in model.names if name not in plain.attributes], written)
    for name, value in plain.attributes.items():
        _refuse_values(name, value)
    if why := _carries(model, example, plain):
        alone = [name for name in model.names if _carries(Observed(model.model, (name,)), example, plain)]
        changed = [_place(model.model, name) for name in written]
        _refuse_unwritten([name for name in alone if _place(model.model, name) not in changed], written)
        raise CaptureError(
            f"forward reads what the call before left in the observable {', '.join(alone or model.names)} ({why}). The graph "
            "would not know it; assign a value that this call alone decides, or register a buffer"
        )
    return {name: len(tree_flatten(value)[0]) for name, value in plain.attributes.items()}


def _refuse_unwritten(names: list[str], written: list[str]) -> None:
    if names:
        others = ", ".join(sorted(set(written))) or "none"
        raise CaptureError(f"forward does not write the observable '{names[0]}'; the attributes it writes: {others}")


def _call_plainly(model: Observed, example: Example) -> tuple[Complete, list[str]]:
    """A call of the model as it is, and the attributes written, by name."""
    watch, around = AttributeWatch(model.model), SurroundingsWatch(model.model)
    try:
        with watch.parameters:
            returned = example.run(model.model)
        places = {name: _place(model.model, name) for name in model.names}
        held = {name: vars(owner)[leaf] for name, (owner, leaf) in places.items() if leaf in vars(owner)}
    finally:
        written = watch.restore()
        around.restore()
    return Complete(returned, held), written


def _carries(model: Observed, example: Example, plain: Complete) -> str:
    """In what a call that finds the observables unset differs from a plain one; "" where in nothing."""
    watch, around = AttributeWatch(model), SurroundingsWatch(model.model)
    try:
        with watch.parameters:
            complete = example.run(model)
    except ExampleError as error:
        return repr(error.__cause__)
    finally:
        watch.restore()
        around.restore()
    if missing := [name for name in model.names if name not in complete.attributes]:
        return f"where it holds something, {', '.join(missing)} is not set"
    expected = Complete(plain.returned, {name: plain.attributes[name] for name in model.names})
    return "" if _equal(expected, complete) else "the call's results depend on it"


def _equal(one: Any, other: Any) -> bool:
    (leaves, spec), (others, other_spec) = tree_flatten(one), tree_flatten(other)
    return spec == other_spec and all(map(_equal_leaves, leaves, others))


def _equal_leaves(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return repr(one) == repr(other)
    same = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return same and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _refuse_values(name: str, value: Any) -> None:
    for leaf in tree_flatten(value)[0]:
        if not isinstance(leaf, _LEAVES):
            raise CaptureError(
                f"the observable '{name}' holds a {type(leaf).__name__}; a graph yields tensors, numbers, strings, None, and "
                "lists, tuples and dicts of these. Write one of them, or register the class as a pytree"
            )
