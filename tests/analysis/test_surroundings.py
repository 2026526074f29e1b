"""What forward writes outside the model: class attributes and module globals are refused by name, and put back."""

from __future__ import annotations

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
    return plain | {"COUNT": COUNT, "SEEN": list(SEEN), "SCRATCH": SCRATCH.tolist()}


WRITES: dict[str, tuple[Callable[[Model], object], str]] = {
    "class attribute": (lambda model: setattr(Model, "calls", Model.calls + 1), "Model.calls (an attribute of the class)"),
    "through a method": (lambda model: Model.count(), "Model.calls"),
    "new on the class": (lambda model: setattr(type(model), "z", torch.ones(2)), "Derived.z"),
    "dict of the class": (lambda model: model.memory.update(last=1), "Model.memory"),
    "global": (rebind, f"COUNT (a global of {__name__})"),
    "global through a function": (lambda model: append(), "SEEN (a global"),
    "tensor in a global": (lambda model: SCRATCH.add_(1), "SCRATCH (a global"),
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
    [lambda model: None, lambda model: (SEEN[0], Model.calls, model.memory["last"]), lambda model: [*SEEN].append(2)],
    ids=["nothing", "reads", "a copy written"],
)
def test_reading_outside_the_model_is_fine(act: Callable[[Model], object]) -> None:
    before = outside()
    foldfx.capture(Derived(act), (IDS,), dynamic=False)
    assert outside() == before
