"""What forward writes outside the model: class attributes and module globals are refused by name, and put back."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.errors import CaptureError

IDS = torch.tensor([[0, 1, 2], [3, 4, 6]])
COUNT, SEEN, SCRATCH = 0, [1], torch.zeros(2)
FACTORS = {"two": 2.0}
LOCAL = threading.local()


class Record:
    """An object that a global holds, and a class that code names."""

    kept: ClassVar[list[int]] = []

    class Inner:
        value = 0

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        TOTALS["all"] += 1


class Remembering(nn.Module):
    """A module that no other registers."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x


RECORD, TOTALS, REMEMBERING = Record(), {"all": 0}, Remembering().eval()
TOTAL, ADD = Record(), SEEN.append


class Model(nn.Module):
    """`act` runs at the start of forward."""

    calls: ClassVar[int] = 0
    memory: ClassVar[dict[str, int]] = {"last": 0}

    def __init__(self, act: Callable[[Model], object]) -> None:
        super().__init__()
        self.embedding, self.act = nn.Embedding(7, 4), act
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        self.act(self)
        return self.embedding(ids) * FACTORS["two"]

    @classmethod
    def count(cls) -> None:
        cls.calls += 1


class Derived(Model):
    """Inherits the attributes that are written."""


def rebind(model: Model) -> None:
    global COUNT  # noqa: PLW0603
    COUNT += 1


def append() -> None:
    SEEN.append(1)


def outside() -> dict[str, Any]:
    """Everything that a call could leave behind."""
    classes = {f"{each.__name__}.{name}": value for each in (Model, Derived) for name, value in vars(each).items()}
    plain = {name: repr(value) for name, value in classes.items() if not name.split(".")[1].startswith("__")}
    inside = {"record": RECORD.count, "totals": TOTALS["all"], "kept": list(Record.kept), "inner": Record.Inner.value}
    return plain | inside | {"COUNT": COUNT, "SEEN": list(SEEN), "SCRATCH": SCRATCH.tolist(), "last": REMEMBERING.last}


def closure() -> Callable[[], object]:
    """A function that writes a variable of its own."""
    seen: list[int] = []
    return lambda: seen.append(1)


def default(seen: list[int] = []) -> None:  # noqa: B006
    seen.append(1)


APPEND_INSIDE = closure()


WRITES: dict[str, tuple[Callable[[Model], object], str]] = {
    "class attribute": (lambda model: setattr(Model, "calls", Model.calls + 1), "Model.calls (an attribute of the class)"),
    "through a method": (lambda model: Model.count(), "Model.calls"),
    "new on the class": (lambda model: setattr(type(model), "z", torch.ones(2)), "Derived.z"),
    "dict of the class": (lambda model: model.memory.update(last=1), "Model.memory"),
    "global": (rebind, f"COUNT (a global of {__name__})"),
    "global through a function": (lambda model: append(), "SEEN (a global"),
    "tensor in a global": (lambda model: SCRATCH.add_(1), "SCRATCH (a global"),
    "object in a global": (lambda model: setattr(RECORD, "count", RECORD.count + 1), "RECORD (a global"),
    "global through an object's method": (lambda model: TOTAL.add(), "TOTALS (a global"),
    "bound method in a global": (lambda model: ADD(1), "ADD (a global"),
    "list of a class that is named": (lambda model: Record.kept.append(1), "Record.kept (an attribute of the class"),
    "a class in a class": (lambda model: setattr(Record.Inner, "value", 1), "Record.Inner.value"),
    "a module in a global": (lambda model: REMEMBERING(torch.ones(2)), "REMEMBERING.last"),
    "in a closure": (lambda model: APPEND_INSIDE(), "seen (in the closure of closure.<locals>.<lambda>)"),
    "default argument": (lambda model: default(), "default.__defaults__"),
}


@pytest.mark.parametrize("case", WRITES)
def test_a_write_outside_the_model_is_refused_and_undone(case: str) -> None:
    act, name = WRITES[case]
    model, before = Derived(act), outside()
    with pytest.raises(CaptureError, match="the graph would lose") as raised:
        foldfx.capture(model, (IDS,), dynamic=False)
    assert name in str(raised.value)
    assert outside() == before


@pytest.mark.parametrize(
    "act",
    [
        lambda model: None,
        lambda model: (SEEN[0], Model.calls, model.memory["last"], RECORD.count, Record.kept, REMEMBERING.last),
        lambda model: [*SEEN].append(2),
    ],
    ids=["nothing", "reads", "a copy written"],
)
def test_reading_outside_the_model_is_fine(act: Callable[[Model], object]) -> None:
    before = outside()
    foldfx.capture(Derived(act), (IDS,), dynamic=False)
    assert outside() == before


class Table:
    """Computes something once and keeps it."""

    def __init__(self) -> None:
        self.rows: dict[int, Tensor] = {}

    def get(self, count: int) -> Tensor:
        if count not in self.rows:
            self.rows[count] = torch.arange(count).float()
        return self.rows[count]


TABLE = Table()


@functools.lru_cache
def frequencies(count: int) -> Tensor:
    return torch.arange(count).float()


class Scaled(nn.Module):
    def __init__(self, scale: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embedding, self.scale = nn.Embedding(7, 4), scale
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return x * self.scale(x)


def test_what_a_cache_computes_is_a_tensor_and_stays_one() -> None:
    frequencies.cache_clear()
    model = Scaled(lambda x: frequencies(4))
    program = foldfx.capture(model, (IDS,))
    assert type(model(IDS)) is Tensor
    assert torch.equal(program.module(IDS), model(IDS))


def test_what_a_trace_alone_computes_is_forgotten() -> None:
    """The key depends on whether there are values."""
    frequencies.cache_clear()
    model = Scaled(lambda x: frequencies(4 if type(x) is Tensor else 1))
    foldfx.capture(model, (IDS,))
    assert type(frequencies(1)) is Tensor


def test_an_object_that_is_a_cache_is_refused_cold_and_accepted_warm() -> None:
    model = Scaled(lambda x: TABLE.get(4))
    with pytest.raises(CaptureError, match=r"TABLE \(a global of .*If it is a cache, call the model once before"):
        foldfx.capture(model, (IDS,))
    assert TABLE.rows == {}
    expected = model(IDS)
    assert torch.equal(foldfx.capture(model, (IDS,)).module(IDS), expected)


def previous(x: Tensor) -> Tensor:
    """What the call before left where no watch looks."""
    kept = getattr(LOCAL, "kept", x)
    LOCAL.kept = x
    return kept


def test_a_trace_that_comes_back_from_where_no_watch_looks_is_refused() -> None:
    LOCAL.__dict__.clear()
    with pytest.raises(CaptureError, match="tracing left fake tensors there"):
        foldfx.capture(Scaled(previous), (IDS,))
    LOCAL.__dict__.clear()
    foldfx.capture(Scaled(lambda x: getattr(LOCAL, "kept", x)), (IDS,))
