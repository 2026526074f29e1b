"""Low-precision outputs: within the limits they are also measured by the original in float64, or nothing is decided."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.passes import FoldTokens, Outcome, PassContext, PassResult, Pipeline, Status, Verdict
from foldfx.passes.builder import Builder
from foldfx.passes.verification import references
from foldfx.passes.verification.figures import further_from

aten = torch.ops.aten
VOCABULARY, WIDTH = 7, 16
LOW = [torch.bfloat16, torch.float16]
low = pytest.mark.parametrize("dtype", LOW, ids=str)


class Near(nn.Module):
    """Returns values a little above 1, where one step is the dtype's epsilon, and the float32 sum of a context."""

    def __init__(self, dtype: torch.dtype, cast: bool = False) -> None:
        super().__init__()
        self.embedding, self.up = nn.Embedding(VOCABULARY, WIDTH, dtype=dtype), nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.embedding.weight.data.mul_(0.05)
        self.dtype = dtype if cast else None
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.embedding(ids) if self.dtype is None else self.embedding(ids).to(self.dtype)
        return self.up(rows).tanh() * 0.05 + hidden, hidden.float().sum()


def examples(dtype: torch.dtype, count: int = 1, level: float = 1.1) -> list[foldfx.Example]:
    shape = (2, 3)
    return [
        foldfx.Example((torch.randint(VOCABULARY, shape), torch.full((*shape, WIDTH), level).to(dtype))) for _ in range(count)
    ]


class Steps:
    """A pass that moves a share of the first output by some steps of its dtype, one rewrite each time it is listed."""

    name: ClassVar[str] = "steps"

    def __init__(self, *moves: tuple[float, int]) -> None:
        self.moves = moves

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        outcomes = []
        for share, steps in self.moves:
            rewrite = f"{steps} steps on {share}"
            if context.fuel.admits(rewrite):
                context.fuel.take(rewrite)
                self._move(program, share, steps)
                outcomes.append(Outcome(self.name, Status.APPLIED, rewrite, "done"))
            else:
                outcomes.append(Outcome(self.name, Status.REJECTED, rewrite, context.fuel.left_out.get(rewrite, "not asked")))
        program.module.recompile()
        return PassResult(program, tuple(outcomes))

    def _move(self, program: foldfx.Program, share: float, steps: int) -> None:
        output = program.graph.output_node()
        value = output.args[0][0]  # type: ignore[index]
        by = torch.zeros(WIDTH, dtype=value.meta["val"].dtype)
        by[: int(share * WIDTH)] = steps * torch.finfo(by.dtype).eps
        build = Builder(program.module, value, self.name)
        more = build.state(f"steps_{steps}_{int(share * WIDTH)}", by)
        moved = build.call(aten.add.Tensor, value, more)
        value.append(moved)
        output.replace_input_with(value, moved)


def compiled(model: nn.Module, dtype: torch.dtype, *moves: tuple[float, int]) -> foldfx.Result:
    pipeline = Pipeline([FoldTokens(), Steps(*moves)])
    return foldfx.compile(model, examples(dtype), pipeline=pipeline, dynamic=False)


def statuses(result: foldfx.Result) -> list[str]:
    return [each["status"] for each in result.report.data["outcomes"]]


@low
def test_a_candidate_further_from_float64_than_the_original_is_refused_by_name(dtype: torch.dtype) -> None:
    """One step on every element is within both limits."""
    result = compiled(Near(dtype), dtype, (1, 1))
    assert statuses(result) == ["applied", "rejected"]
    (found,) = result.counterexamples
    assert found.call == "example 0"
    assert found.difference.where == "output [0]"
    assert "from the float64 reference exceeds 1.5 × the original's" in found.difference.what
    assert found.node == "add_tensor"
    assert found.difference.index is not None
    assert found.difference.found - found.difference.expected == torch.finfo(dtype).eps
    assert str(found) in result.report.data["outcomes"][1]["reason"]


@low
def test_a_candidate_about_as_near_as_the_original_is_accepted(dtype: torch.dtype) -> None:
    """One step on one element in sixteen hardly adds to the rounding of the original."""
    result = compiled(Near(dtype), dtype, (1 / 16, 1))
    assert statuses(result) == ["applied", "applied"]
    assert result.counterexamples == ()
    assert not result.report.data["verification"]["outputs"]["bitwise"]
    assert result.report.data["verification"]["verdict"] == "equivalent_on"


@low
def test_a_candidate_beyond_the_limits_needs_no_float64_to_be_refused(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = counted(monkeypatch)
    found = compiled(Near(dtype), dtype, (1, 8)).counterexamples[0]
    assert "max-abs" in found.difference.what
    assert runs == []


@low
def test_a_model_that_does_not_run_in_float64_decides_nothing_where_bits_differ(dtype: torch.dtype) -> None:
    result = compiled(Near(dtype, cast=True), dtype, (1 / 16, 1))
    assert result.status == "rolled_back"
    verification = result.report.data["verification"]
    assert verification["verdict"] == "undecided"
    assert verification["because"][0].startswith("example 0: outputs differ and the model does not run in float64")
    assert statuses(result) == ["rejected", "rejected"]
    with pytest.raises(IndexError, match="no counterexample"):
        result.write_reproducer("never written")


@low
def test_a_model_that_does_not_run_in_float64_is_folded_where_bits_are_equal(dtype: torch.dtype) -> None:
    result = compiled(Near(dtype, cast=True), dtype, (0, 1))
    assert result.accepted
    assert result.report.data["verification"]["outputs"]["bitwise"]


@low
def test_what_stayed_open_for_one_candidate_is_no_doubt_about_the_next(dtype: torch.dtype) -> None:
    """What is handed back, the captured program, has the bits of the original: it is verified."""
    result = compiled(Near(dtype, cast=True), dtype, (1 / 16, 1))
    assert result.status == "rolled_back"
    assert result.validity().state == "verified"


def test_the_wrong_rewrite_is_found_beside_an_example_that_stays_open() -> None:
    """Example 0 differs within the limits, and there is no float64 to measure it by; example 1 is beyond them."""
    model, dtype = Near(torch.bfloat16, cast=True), torch.bfloat16
    calls = examples(dtype, 2)
    calls[1] = foldfx.Example((calls[1].args[0], calls[1].args[1] * 4))

    class Square(Steps):
        """Adds what is within the limits where the values are near 1, and beyond where they are near 4."""

        def _move(self, program: foldfx.Program, share: float, steps: int) -> None:
            output = program.graph.output_node()
            value = output.args[0][0]  # type: ignore[index]
            moved = Builder(program.module, value, self.name).call(aten.mul.Tensor, value, 1.0 + share)
            value.append(moved)
            output.replace_input_with(value, moved)

    pipeline = Pipeline([FoldTokens(), Square((0.0, 1), (0.0078125, 2), (0.0, 3))])
    result = foldfx.compile(model, calls, pipeline=pipeline, dynamic=False)
    assert statuses(result) == ["applied", "applied", "rejected", "applied"]
    assert result.counterexamples[0].call == "example 1"


# `verify`, with any two modules


def counted(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that were run in float64, as they come."""
    runs: list[nn.Module] = []
    genuine = references.observe_wide

    def observe_wide(original: nn.Module, example: foldfx.Example) -> Any:
        runs.append(original)
        return genuine(original, example)

    monkeypatch.setattr(references, "observe_wide", observe_wide)
    return runs


class Changed(nn.Module):
    """Another model, its first output changed."""

    def __init__(self, model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.change = copy.deepcopy(model), change
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        one, other = self.model(ids, hidden)
        return self.change(one), other


def one_step(share: int) -> Callable[[Tensor], Tensor]:
    """One step up in the first columns of [..., WIDTH]."""

    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[..., :share] += torch.finfo(value.dtype).eps
        return value

    return change


class Wide(nn.Module):
    """Computes in float64 and rounds once: nearer than the original, which rounds every time."""

    def __init__(self, model: Near) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).double()

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        one, _ = self.model(ids, hidden.double())
        return one.to(hidden.dtype), hidden.float().sum()


@low
def test_verify_refuses_what_is_further_and_accepts_what_is_as_near_or_nearer(dtype: torch.dtype) -> None:
    model, calls = Near(dtype), examples(dtype, 2)
    refused = foldfx.verify(model, Changed(model, one_step(WIDTH)), calls)
    assert refused.verdict is Verdict.DIFFERENT
    assert [text.partition(": relative L2")[0] for text in refused.because] == [f"example {n}: output [0]" for n in (0, 1)]
    assert all("from the float64 reference" in text for text in refused.because)
    for candidate, level in ((Changed(model, one_step(1)), 1.1), (Wide(model), 0.01)):
        accepted = foldfx.verify(model, candidate, examples(dtype, 2, level))
        assert (accepted.verdict, accepted.figures.bitwise) == (Verdict.EQUIVALENT_ON, False)


@low
def test_the_factor_is_a_limit_like_the_others(dtype: torch.dtype) -> None:
    model, calls = Near(dtype), examples(dtype)
    assert foldfx.verify(model, Changed(model, one_step(WIDTH)), calls, limits=foldfx.Limits(wide_factor=4)).success
    assert not foldfx.verify(model, Changed(model, one_step(1)), calls, limits=foldfx.Limits(wide_factor=0.1)).success


@low
def test_verify_decides_nothing_where_the_reference_does_not_run_in_float64(dtype: torch.dtype) -> None:
    model, calls = Near(dtype, cast=True), examples(dtype, 2)
    found = foldfx.verify(model, Changed(model, one_step(1)), calls)
    assert (found.verdict, found.success) == (Verdict.UNDECIDED, False)
    assert [text.partition(":")[0] for text in found.because] == ["example 0", "example 1"]
    assert all("does not run in float64" in text for text in found.because)
    assert foldfx.verify(model, Changed(model, Tensor.clone), calls).success
    assert foldfx.verify(model, Changed(model, one_step(WIDTH)), calls).verdict is Verdict.UNDECIDED


class Uncopied(Near):
    def __deepcopy__(self, memo: dict[int, Any]) -> Near:
        raise TypeError("holds a file")


def test_a_reference_that_cannot_be_copied_decides_nothing_either() -> None:
    model = Uncopied(torch.float16)
    candidate = Changed(nn.Identity(), one_step(1))
    candidate.model = model
    found = foldfx.verify(model, candidate, examples(torch.float16))
    assert found.verdict is Verdict.UNDECIDED
    assert "holds a file" in found.because[0]


@low
def test_float64_is_run_once_an_example_and_only_where_bits_differ(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted(monkeypatch)
    model, calls = Near(dtype), examples(dtype, 2)
    assert foldfx.verify(model, copy.deepcopy(model), calls).success
    assert foldfx.compile(model, calls, dynamic=False).accepted
    assert runs == []
    assert foldfx.verify(model, Changed(model, one_step(1)), calls).success
    assert runs == [model, model]


def test_float32_outputs_are_measured_by_their_limits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted(monkeypatch)
    model, calls = Near(torch.float32), examples(torch.float32)
    found = foldfx.verify(model, Changed(model, one_step(WIDTH)), calls)
    assert (found.success, found.figures.bitwise) == (True, False)
    assert runs == []


@low
def test_the_original_counts_as_one_rounding_away_at_least(dtype: torch.dtype) -> None:
    """Values the dtype holds exactly leave a candidate three quarters of a step, relative to the value."""
    exact = torch.full((8,), 1.0)
    step = torch.finfo(dtype).eps
    assert further_from(exact.double(), exact.to(dtype), (exact * (1 + step)).to(dtype), 1.5).startswith("relative L2")
    assert further_from(exact.double() * 1.75, exact.to(dtype) * 1.75, (exact * (1.75 + step)).to(dtype), 1.5) == ""
