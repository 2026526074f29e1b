"""`verify` for any two modules: whatever a caller could see decides, and what is not repeatable decides nothing."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx import Example, verify
from foldfx.errors import ExampleError
from foldfx.passes import Verdict


class Scorer(nn.Module):
    """A small model with dropout and a buffer that each call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.head = nn.Embedding(9, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        self.count += 1
        return self.head(self.dropout(torch.relu(self.up(self.embedding(ids))) + hidden))


def examples() -> list[Example]:
    shapes = ((2, 3), (3, 4))
    return [Example((torch.randint(9, shape), torch.randn(*shape, 32))) for shape in shapes]


def test_a_folded_module_and_a_copy_are_equivalent() -> None:
    model, calls = Scorer(), examples()
    result = foldfx.compile(model, calls)
    assert result.accepted
    for candidate in (result.module, copy.deepcopy(model), model):
        found = verify(model, candidate, calls)
        assert (found.verdict, found.because, found.examples) == (Verdict.EQUIVALENT_ON, (), 2)
        assert found.success
    assert verify(model, model, calls).figures.bitwise
    assert model.count == result.module.count == 0


def test_one_weight_off_is_different_within_the_limits_it_is_not() -> None:
    model, calls = Scorer(), examples()
    candidate = copy.deepcopy(model)
    candidate.head.bias.data[2] += 1e-3
    found = verify(model, candidate, calls)
    assert (found.verdict, found.success) == (Verdict.DIFFERENT, False)
    assert [text.partition(":")[0] for text in found.because] == ["example 0", "example 1"]
    assert "max-abs" in found.because[0]
    assert found.figures.max_abs == pytest.approx(1e-3, rel=1e-2)
    loose = foldfx.Limits(max_abs={torch.float32: 1e-2}, relative_l2={torch.float32: 1e-2})
    assert verify(model, candidate, calls, limits=loose).success
    assert verify(model, candidate, calls, limits=loose).limits is loose


def test_pairs_count_as_examples() -> None:
    model = Scorer()
    assert verify(model, model, [(call.args, dict(call.kwargs)) for call in examples()]).success


class Other(Scorer):
    """The same outputs, and one thing else that a caller can see."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, ids: Tensor, hidden: Tensor) -> Any:
        if self.kind == "input":
            hidden += 0.5
        result = super().forward(ids, hidden)
        if self.kind == "buffer":
            self.count += 1
        if self.kind == "raises":
            raise IndexError("no such id")
        return {"tree": (result,), "dtype": result.double(), "shape": result[None]}.get(self.kind, result)


@pytest.mark.parametrize("kind", ["tree", "dtype", "shape", "input", "buffer", "raises", "nothing"])
def test_whatever_a_caller_can_see_decides(kind: str) -> None:
    model, candidate = Scorer(), Other(kind)
    candidate.load_state_dict(model.state_dict())
    found = verify(model, candidate, examples())
    assert found.verdict == ("equivalent_on" if kind == "nothing" else "different")
    assert model.count == candidate.count == 0


_DRIFT = itertools.count()


class Drifting(Scorer):
    """Returns something else every time it is called."""

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        return super().forward(ids, hidden) + next(_DRIFT)


def test_a_reference_that_differs_from_itself_decides_nothing() -> None:
    model = Drifting()
    for candidate in (model, copy.deepcopy(model), Scorer()):
        found = verify(model, candidate, examples())
        assert (found.verdict, found.success) == (Verdict.UNDECIDED, False)
        assert "differs from itself" in found.because[0]


def test_a_random_one_is_repeatable_from_one_seed() -> None:
    model = Scorer().train()
    assert verify(model, copy.deepcopy(model), examples()).success
    assert verify(model, copy.deepcopy(model).eval(), examples()).verdict == "different"
    assert model.training


class Renamed(Scorer):
    def forward(self, ids: Tensor, state: Tensor) -> Tensor:
        return super().forward(ids, state)


class Longer(Scorer):
    def forward(self, ids: Tensor, hidden: Tensor, mask: Tensor) -> Tensor:
        return super().forward(ids, hidden) * mask


class Nested(Scorer):
    def forward(self, ids: Tensor, hidden: Any) -> Tensor:
        return super().forward(ids, hidden[0] if isinstance(hidden, tuple) else hidden)


def by_name() -> list[Example]:
    return [Example(call.args[:1], {"hidden": call.args[1]}) for call in examples()]


def test_a_candidate_called_differently_is_refused() -> None:
    model = Scorer()
    with pytest.raises(ExampleError, match=r"example 0 is a call of the reference but not of the candidate: missing.*'mask'"):
        verify(model, Longer(), examples())
    with pytest.raises(ExampleError, match=r"required argument: .state."):
        verify(model, Renamed(), by_name())
    same = Renamed()
    same.load_state_dict(model.state_dict())
    assert verify(model, same, examples()).success


def test_a_captured_candidate_with_another_tree_of_inputs_is_refused() -> None:
    model = Nested()
    nested = [Example((call.args[0], (call.args[1],))) for call in examples()]
    captured = foldfx.capture(model, *[nested[0].args]).module
    assert verify(model, captured, nested).success
    with pytest.raises(ExampleError, match="not of the candidate: the call has structure"):
        verify(model, captured, examples())


def test_a_captured_candidate_takes_its_inputs_by_name_too() -> None:
    model = Scorer()
    captured = foldfx.capture(model, examples()[0].args, dynamic=False).module
    assert verify(model, captured, by_name()[:1]).success
    bad = Example((torch.full((2, 3), 8),), {"hidden": torch.randn(2, 3, 32)})
    candidate = Scorer()
    candidate.embedding = nn.Embedding(8, 32).eval()
    narrow = foldfx.capture(candidate, (torch.zeros(2, 3, dtype=torch.int64), torch.randn(2, 3, 32)), dynamic=False).module
    assert "IndexError" in verify(model, narrow, [bad]).because[0]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([], "at least one is required"),
        ([torch.zeros(2)], "example 0 is a Tensor"),
        ([Example((torch.zeros(2, dtype=torch.int64), torch.zeros(2, 31)))], "fails on example 0"),
        ([Example((torch.zeros(2, dtype=torch.int64),))], "fails on example 0"),
    ],
)
def test_examples_the_reference_does_not_take_are_refused(calls: list[Any], message: str) -> None:
    with pytest.raises(ExampleError, match=message):
        verify(Scorer(), Scorer(), calls)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"the candidate is a function; pass an nn\.Module"):
        verify(Scorer(), examples, examples())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the reference is a str"):
        verify("model", Scorer(), examples())  # type: ignore[arg-type]
