"""Ids that are said not to occur take no table rows, and are refused when they occur all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.analysis.program import GUARDS, NoGuards
from foldfx.errors import TokenInputError, UnreachableTokenError
from foldfx.passes import PassContext, PassResult
from foldfx.passes.tables.runner import RegionRunner

VOCABULARY, WIDTH, OUT, FLOAT = 60, 8, 16, 4
PROJECTION, ROW = FLOAT * (WIDTH + 1) * OUT, FLOAT * OUT
WEIGHTS = FLOAT * VOCABULARY * WIDTH + PROJECTION
SUBSET, PREFIX = (3, 5, 8, 21, 34, 55), tuple(range(6))
Agree = Callable[..., None]


class Model(nn.Module):
    """A table of every id is larger than the weights; one of a few ids is smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, OUT)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.project(self.embedding(ids))).cumsum(1)


def drawn(reachable: Iterable[int]) -> Tensor:
    tokens = torch.tensor(list(reachable))
    return tokens[torch.randint(len(tokens), (3, 5))]


def fold(model: nn.Module, reachable: Iterable[int] | None, **options: Any) -> foldfx.Result:
    example = foldfx.Example((drawn(reachable or range(VOCABULARY)),))
    return foldfx.compile(model, [example], tokens=[foldfx.TokenInput("ids", reachable=reachable)], dynamic=False, **options)


def with_id(token: int, reachable: Iterable[int]) -> Tensor:
    ids = drawn(reachable)
    ids[1, 2] = token
    return ids


@pytest.mark.parametrize("count", [6, 17, 19, 58, 59, 60])
@pytest.mark.parametrize("prefix", [True, False], ids=["prefix", "subset"])
def test_tables_hold_the_reachable_ids(count: int, prefix: bool, agree: Agree) -> None:
    """The cheapest of three: all weights, a table of the outputs, or one of the embedding's rows beside the projection.

    An id is its own row where the reachable ids come first; else a byte for each id of the vocabulary says its row.
    """
    reachable = range(count) if prefix else range(VOCABULARY - count, VOCABULARY)
    remap = 0 if prefix or count == VOCABULARY else VOCABULARY
    expected = min(WEIGHTS, count * ROW + remap, count * WIDTH * FLOAT + remap + PROJECTION)
    model = Model()
    result = fold(model, reachable[::-1])
    assert result.report.to_dict()["storage"]["after"] == {"logical": expected, "backing": expected}
    assert result.accepted is (expected < WEIGHTS)
    for _ in range(2):
        ids = drawn(reachable)
        agree(model(ids), result.module(ids), max_abs=1e-5, relative_l2=1e-5)


def test_reachable_ids_turn_a_refusal_into_a_fold_and_the_report_says_so() -> None:
    whole, some = fold(Model(), None), fold(Model(), SUBSET)
    assert (VOCABULARY * ROW > WEIGHTS, len(SUBSET) * ROW < WEIGHTS) == (True, True)
    assert (whole.status, some.status) == ("unchanged", "accepted")
    (outcome,) = some.report.to_dict()["outcomes"]
    assert f"over all ids the tables would take {VOCABULARY * ROW:,} B and not pay" in outcome["reason"]
    assert some.report.to_dict()["tokens"]["ids"]["reachable"] == len(SUBSET)
    assert f"{len(SUBSET)} of them reachable" in str(some.report)
    assert "of them reachable" not in str(whole.report)


@pytest.mark.parametrize("reachable", [SUBSET, PREFIX], ids=["subset", "prefix"])
def test_an_unreachable_id_is_named(reachable: tuple[int, ...]) -> None:
    result = fold(Model(), reachable)
    with pytest.raises(UnreachableTokenError, match=r"input ids carries id 40, which") as caught:
        result.module(torch.tensor([reachable[:1] * 5, reachable[:4] + (40,), reachable[:5]]))
    assert isinstance(caught.value, IndexError)
    with pytest.raises(UnreachableTokenError, match="id 40 and 1 more"):
        result.module(torch.tensor([reachable[:5], (41, 40, 40, *reachable[:2]), reachable[:5]]))


@pytest.mark.parametrize("reachable", [SUBSET, PREFIX], ids=["subset", "prefix"])
def test_an_unreachable_id_has_no_row_where_nothing_checks_it(reachable: tuple[int, ...]) -> None:
    """A traced program has no guard in front; the lookup raises."""
    module = fold(Model(), reachable).module
    module.add_submodule(GUARDS, NoGuards())
    for token in {*range(VOCABULARY)} - {*reachable}:
        with pytest.raises(IndexError):
            module(with_id(token, reachable))


@pytest.mark.parametrize("reachable", [SUBSET, PREFIX, None], ids=["subset", "prefix", "all"])
@pytest.mark.parametrize("token", [VOCABULARY, -1, -VOCABULARY - 1])
def test_an_id_outside_the_domain_is_an_index_error_as_before(reachable: tuple[int, ...] | None, token: int) -> None:
    model = Model()
    result = fold(model, reachable)
    ids = with_id(token, reachable or SUBSET)
    for module in (model, result.module):
        with pytest.raises(IndexError) as caught:
            module(ids)
        assert not isinstance(caught.value, UnreachableTokenError)


def test_a_refused_fold_answers_the_reachable_ids_as_the_model_does(agree: Agree) -> None:
    """Nothing was tabulated; what was said not to occur is refused nonetheless, because nobody verified it."""
    model, reachable = Model(), range(1, VOCABULARY)
    result = fold(model, reachable)
    assert not result.accepted
    ids = drawn(reachable)
    agree(model(ids), result.module(ids), max_abs=1e-5, relative_l2=1e-5)
    with pytest.raises(UnreachableTokenError):
        result.module(with_id(0, reachable))


@pytest.mark.parametrize(
    ("reachable", "message"),
    [((), "holds no id"), ((1, VOCABULARY), "not all in 0..59"), ((-1, 3), "not all in 0..59")],
)
def test_impossible_ids_are_refused(reachable: tuple[int, ...], message: str) -> None:
    with pytest.raises(TokenInputError, match=message):
        foldfx.capture(Model(), (drawn(PREFIX),), tokens=[foldfx.TokenInput("ids", reachable=reachable)])


@pytest.mark.parametrize("reachable", [(1.5, 2), ("3",)], ids=["fractions", "text"])
def test_ids_that_are_no_integers_are_refused(reachable: tuple[Any, ...]) -> None:
    """They are not cut down to some other id; integers of other libraries are integers."""
    with pytest.raises((TokenInputError, TypeError, ValueError)):
        foldfx.TokenInput("ids", reachable=reachable)
    assert foldfx.TokenInput("ids", reachable=np.array([4, 2, 4])).reachable == (2, 4)
    assert foldfx.TokenInput("ids", reachable=torch.tensor([4, 2])).reachable == (2, 4)


@pytest.mark.parametrize("reachable", [SUBSET, PREFIX], ids=["subset", "prefix"])
def test_every_reachable_id_is_verified_and_no_other(reachable: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids the region is ever run on, to fill the table and to check it, are the reachable ones."""
    seen: list[int] = []
    run = RegionRunner.rows

    def rows(self: RegionRunner, ids: Mapping[str, Tensor]) -> list[Tensor]:
        seen.extend(ids["ids"].flatten().tolist())
        return run(self, ids)

    monkeypatch.setattr(RegionRunner, "rows", rows)
    layouts = fold(Model(), reachable).report.to_dict()["verification"]["layouts"]
    assert set(seen) == set(reachable)
    assert {(each["tokens"], each["domain"]) for each in layouts if each["layout"] != "empty"} == {(len(reachable),) * 2}
    assert {each["layout"] for each in layouts} >= {"as built", "scalar", "2-D", "strided"}


class Spoil:
    """A pass that writes another number into one row of every table."""

    name: ClassVar[str] = "spoil"

    def __init__(self, row: int) -> None:
        self.row = row

    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        for module in list(program.module.modules()):
            for name, table in list(module.named_buffers(recurse=False)):
                wrong = table.clone()
                wrong[self.row, -1] += 1e-3 if table.is_floating_point() else 0
                setattr(module, name, wrong)
        return PassResult(program, ())


@pytest.mark.parametrize("row", range(len(SUBSET)))
def test_a_wrong_row_of_any_reachable_id_is_found(row: int) -> None:
    """The examples may not hold the id; the check of the whole domain does."""
    result = fold(Model(), SUBSET, pipeline=foldfx.Pipeline((foldfx.FoldTokens(), Spoil(row))))
    assert result.status == "rolled_back"
    assert any("max-abs" in text for text in result.report.to_dict()["verification"]["because"])
