"""The search for calls near a tie: complete over small token spaces, better than chance over large ones, and it bites."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import foldfx
from foldfx import Limits
from foldfx.analysis import analyze_program
from foldfx.analysis.decisions import find_decisions
from foldfx.errors import ExampleError
from foldfx.passes.verification.near_ties import NearTies, NearTieSearch
from foldfx.passes.verification.observe import observe
from foldfx.passes.verification.references import References

WIDTH, EXPERTS, CHOSEN, LENGTH = 16, 8, 2, 2
VOCABULARY = 24
BUDGET = VOCABULARY**LENGTH


class Mixed(nn.Module):
    """A router of the running mean over positions, so its scores depend on every id so far."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.embedding, self.router = nn.Embedding(vocabulary, WIDTH), nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.eval().requires_grad_(False)

    def scores(self, ids: Tensor) -> Tensor:
        rows = self.embedding(ids)
        return self.router(rows + torch.tanh(rows).cumsum(1))

    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        top = self.scores(ids).topk(CHOSEN)
        return (top.values.softmax(-1)[..., None] * self.experts[top.indices]).sum(-2) * scale[:, None, None]

    def margins(self, ids: Tensor) -> Tensor:
        """In float64, the least of every row of ids, from the definition alone."""
        wide = Mixed(self.embedding.num_embeddings).double()
        wide.load_state_dict({name: tensor.double() for name, tensor in self.state_dict().items()})
        best = wide.scores(ids).sort(-1, descending=True).values
        return (best[..., CHOSEN - 1] - best[..., CHOSEN]).amin(-1)

    def plant(self, first: int, second: int, gap: float) -> None:
        """Nudge the first id's row until the choice at the second position is `gap` from another one."""
        router, table = self.router.weight.double(), self.embedding.weight.double()
        row = table[first]
        for _ in range(40):
            row = row.detach().requires_grad_(True)
            scores = router @ (table[second] + torch.tanh(table[second]) + torch.tanh(row))
            best = scores.argsort(descending=True)
            apart = scores[best[CHOSEN - 1]] - scores[best[CHOSEN]]
            (slope,) = torch.autograd.grad(apart, row)
            row = row - 0.5 * (apart.detach() - gap) * slope / slope.dot(slope)
        self.embedding.weight[first] = row.detach().float()


def searched(model: nn.Module, budget: int, shape: tuple[int, int] = (3, LENGTH), seed: int = 0, **options: Any) -> NearTies:
    vocabulary = model.embedding.num_embeddings
    call = foldfx.Example((torch.randint(vocabulary, shape), torch.ones(shape[0])))
    program = foldfx.capture(model, call.args, **options)
    decisions = find_decisions(program, analyze_program(program))
    (found,) = NearTieSearch(program, decisions, call, budget, seed).results()
    return found


@pytest.fixture(scope="module")
def ties() -> Mixed:
    """20 calls of two ids whose margins are from 1e-7 to 1e-3, each with another first id."""
    torch.manual_seed(5)
    model = Mixed()
    for place in range(20):
        model.plant(place, int(torch.randint(20, VOCABULARY, ())), 10 ** (-7 + 4 * place / 19))
    return model


def test_nearly_all_near_ties_of_a_small_token_space_are_found_within_its_size(ties: Mixed) -> None:
    every = torch.tensor(list(product(range(VOCABULARY), repeat=LENGTH)))
    margins = ties.margins(every)
    near = {tuple(ids) for ids, margin in zip(every.tolist(), margins.tolist(), strict=True) if margin < 1e-5}
    assert len(near) >= 8
    found = searched(ties, BUDGET)
    assert (found.contexts, found.space) == (BUDGET, VOCABULARY**LENGTH)
    listed = {each.tokens for each in found.nearest if each.margin < 1e-5 + found.deviation}
    assert len(near & listed) >= 0.95 * len(near)
    assert abs(found.margins.smallest - float(margins.min())) < 1e-6
    assert found.margins.examined == BUDGET * LENGTH


def test_a_model_without_near_ties_has_none_listed() -> None:
    """The twin: scores rounded to a grid of 1/64, margins at least that, unless they are exact ties."""

    class Coarse(Mixed):
        def scores(self, ids: Tensor) -> Tensor:
            return torch.trunc(64 * super().scores(ids)) + torch.arange(EXPERTS) / 16

    model = Coarse()
    call = foldfx.Example((torch.randint(VOCABULARY, (3, LENGTH)), torch.ones(3)))
    program = foldfx.capture(model, call.args)
    decisions = [each for each in find_decisions(program, analyze_program(program)) if each.kind == "top-k"]
    (found,) = NearTieSearch(program, decisions, call, BUDGET).results()
    assert found.margins.smallest >= 1 / 16


class Pooled(Mixed):
    """A router of the mean over all positions: one token of many moves the scores a little."""

    def scores(self, ids: Tensor) -> Tensor:
        return self.router(self.embedding(ids).mean(1, keepdim=True))


def test_half_of_a_small_budget_is_spent_climbing_and_beats_as_many_draws() -> None:
    """Over calls of 256 ids, by the smallest margin found, for most of eight models."""
    better = 0
    for seed in range(8):
        torch.manual_seed(seed)
        model = Pooled(64)
        found = searched(model, 768, (2, 256), seed)
        assert found.contexts == 768
        drawn = torch.randint(64, (768, 256), generator=torch.Generator().manual_seed(seed))
        best = model.scores(drawn).double().sort(-1, descending=True).values
        better += found.margins.smallest < float((best[..., CHOSEN - 1] - best[..., CHOSEN]).min())
    assert better >= 6


def test_the_same_seed_finds_the_same_and_another_one_other_calls() -> None:
    model = Mixed(64)
    one, two, other = (searched(model, 256, (2, 3), seed) for seed in (1, 1, 2))
    assert one.nearest == two.nearest
    assert one.nearest != other.nearest


def test_calls_that_cannot_share_one_are_searched_one_by_one() -> None:
    found = searched(Mixed(8), 100, (2, LENGTH), dynamic=False)
    assert found.space == 8 ** (2 * LENGTH)
    assert found.contexts == 100
    assert all(len(each.tokens) == 2 * LENGTH for each in found.nearest)


class Batched(Mixed):
    """Routes of whole sequences, with the batch behind the positions, or each taken against all others of the batch."""

    def __init__(self, lies: str) -> None:
        super().__init__(8)
        self.lies = lies

    def scores(self, ids: Tensor) -> Tensor:
        scores = super().scores(ids)
        return scores - scores.mean(0, keepdim=True) if self.lies == "met" else scores

    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        scores = self.scores(ids).movedim(0, 1) if self.lies == "behind" else self.scores(ids)
        return scores.topk(CHOSEN).indices.sum() * scale


@pytest.mark.parametrize(("lies", "shares"), [("first", True), ("behind", False), ("met", False)])
def test_calls_are_shared_only_where_rows_keep_apart(lies: str, shares: bool) -> None:
    model = Batched(lies)
    call = foldfx.Example((torch.randint(8, (3, LENGTH)), torch.ones(3)))
    program = foldfx.capture(model, call.args)
    search = NearTieSearch(program, find_decisions(program, analyze_program(program)), call, 64)
    (found,) = search.results()
    assert search.shares_calls is shares
    assert (found.contexts, found.space) == (64, 64)
    for context in found.nearest:
        best = model.scores(torch.tensor([context.tokens])).double().topk(CHOSEN + 1).values
        assert context.margin == pytest.approx(float((best[..., -2] - best[..., -1]).min()), abs=1e-6)


def test_as_many_may_be_chosen_as_the_call_has_positions() -> None:
    class AsMany(Mixed):
        def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
            return self.scores(ids).topk(ids.shape[1]).indices.sum() * scale

    model = AsMany(8)
    found = searched(model, 64)
    assert (found.note, found.contexts) == ("", 64)
    every = torch.tensor(list(product(range(8), repeat=LENGTH)))
    best = model.scores(every).double().topk(LENGTH + 1).values
    assert found.margins.smallest == pytest.approx(float((best[..., -2] - best[..., -1]).min()), abs=1e-6)


def test_a_model_that_raises_on_other_ids_ends_the_search_and_says_so() -> None:
    class Picky(Mixed):
        def scores(self, ids: Tensor) -> Tensor:
            return super().scores(ids) + torch.linalg.inv((ids[:1, :1] < 20).float() * torch.eye(1))[0, 0]

    found = searched(Picky(), BUDGET)
    assert "the search ended after" in found.note
    assert "raised" in found.note


def one_of_six(x: Tensor) -> Tensor:
    """The largest of six running sums; all of them move when `x` moves by a bit, three up and three down."""
    return torch.cat([x[..., :3], 3 - x[..., 3:6]], -1).cumsum(1).argmax(-1) * 0.25


@pytest.mark.parametrize("tied", [True, False])
def test_a_choice_that_one_table_turns_is_found_in_a_call_no_example_shows(tied: bool, planted: Any, rounding: Any) -> None:
    """Ids 7 and 30 in this order tie, and calls of two rows round otherwise than bulk calls; without the tie nothing turns."""
    planted.by_count(lambda count: int(count == 2))
    model = rounding(through=one_of_six)
    rows = torch.rand(planted.VOCABULARY, planted.WIDTH) * 0.2 + 1
    rows[:, 3:6] += 0.8
    rows[7, 1], rows[7, 3], rows[30, 1], rows[30, 3] = 1.25, 1.25, 1.75, 1.75 - (2**-22 if tied else 2**-10)
    with torch.no_grad():
        model.weight.copy_(rows.repeat(1, 4))
    ids = torch.tensor([[0, 1], [2, 3], [4, 5]])
    names = {}
    for contexts in (0, planted.VOCABULARY**2):
        result = foldfx.compile(model, [foldfx.Example((ids,))], probe_contexts=contexts)
        names[contexts] = [each["name"] for each in result.report.to_dict()["rewrites"]]
        searched_at_all = contexts > 0
        assert ("calls near a tie" in str(result.report)) is searched_at_all
        assert any("near tie" in str(each) for each in result.counterexamples) is (tied and searched_at_all)
    assert names[0] == ["fold_tokens: cat"]
    assert names[planted.VOCABULARY**2] == ["fold_tokens: cat, by execution class" if tied else "fold_tokens: cat"]


class Narrowed(Mixed):
    """Fails on a single row, which its graph would take: a slice ends where the rows do."""

    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        return super().forward(ids, scale).narrow(0, 0, 2)


@pytest.mark.parametrize("contexts", [1, 64])
def test_calls_have_as_many_rows_as_the_capture_allows_at_least(contexts: int) -> None:
    """Sizes that export itself takes to be at least two, as `Dim.AUTO` does."""
    call = foldfx.Example((torch.randint(8, (3, LENGTH)), torch.ones(3)))
    dims = {"ids": [Dim.AUTO, Dim.AUTO], "scale": [Dim.AUTO]}
    program = foldfx.capture(model := Narrowed(8), call.args, dynamic=dims)
    decisions = find_decisions(program, analyze_program(program))
    search = NearTieSearch(program, decisions, call, contexts)
    (found,) = search.results()
    assert found.contexts == contexts
    assert found.margins.examined == contexts * LENGTH
    for each in found.nearest:
        ids, scale = search.example(each.tokens).args
        assert ids.tolist() == [list(each.tokens)] * 2
        assert each.margin == pytest.approx(float(model.margins(ids).min()), abs=1e-5)
        model(ids, scale)
    result = foldfx.compile(model, [call], dynamic=dims, probe_contexts=contexts)
    assert "calls near a tie: bitwise equal" in str(result.report)


@pytest.mark.parametrize("made_up", [True, False])
def test_a_made_up_call_that_the_model_fails_on_says_nothing(made_up: bool) -> None:
    calls = [foldfx.Example((torch.zeros(rows, LENGTH, dtype=torch.long), torch.ones(rows))) for rows in (1, 3)]
    references = References(Narrowed(8), calls, Limits(), "near tie", made_up)
    if made_up:
        assert [len(each) for each in references.observed()] == [0, 1]
        wrong, _, unsure = references.compare(lambda place, seed: observe(Narrowed(8), calls[place], seed=seed))
        assert {str(each).partition(":")[0] for each in wrong} == {"near tie 1"}
        assert unsure == []
    else:
        with pytest.raises(ExampleError, match="the model fails on near tie 0"):
            references.observed()


def test_contexts_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        foldfx.Pipeline(probe_contexts=-1)
    with pytest.raises(ValueError, match="goes to the pipeline"):
        foldfx.compile(Mixed(), [], pipeline=foldfx.Pipeline(), probe_contexts=1)
