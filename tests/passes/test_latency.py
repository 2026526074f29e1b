"""The latency objective: the least work a token within a budget of table bytes, kept only where it measures faster."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.analysis import analyze_program
from foldfx.passes import latency
from foldfx.passes.cut import Candidate
from foldfx.passes.latency import Timing, fastest_cut, measure_side_by_side

VOCABULARY, WIDTH, OUT, FLOAT = 50, 96, 8, 4
TABLE, PRODUCTS = VOCABULARY * OUT * FLOAT, WIDTH * WIDTH + WIDTH * OUT
SLOWER, FASTER, EQUAL = Timing(1e-3, 2.5e-3, 15), Timing(2.5e-3, 1e-3, 15), Timing(1e-3, 1e-3, 15)
Agree = Callable[..., None]


class Router(nn.Module):
    """The embedding is read again behind the router, so its table frees the router's weights at most."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.score = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUT)),
        )
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.score(self.embedding(ids)).cumsum(1), hidden @ self.embedding.weight.t()


def call() -> tuple[Tensor, Tensor]:
    return torch.randint(VOCABULARY, (3, 5)), torch.randn(3, 5, WIDTH)


def fold(model: nn.Module, agree: Agree, **options: Any) -> foldfx.Result:
    result = foldfx.compile(model, [foldfx.Example(call())], **options)
    args = call()
    agree(model(*args), result.module(*args), max_abs=1e-5, relative_l2=1e-5)
    return result


def reason(result: foldfx.Result) -> str:
    (outcome,) = result.report.to_dict()["outcomes"]
    return f"{outcome['status']}: {outcome['reason']}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "latency"}, "max_table_bytes"),
        ({"max_table_bytes": 1 << 20}, "max_table_bytes"),
        ({"objective": "storage", "max_table_bytes": 0}, "max_table_bytes"),
        ({"objective": "speed", "max_table_bytes": 1}, "unknown objective 'speed'"),
    ],
)
def test_an_objective_without_its_budget_and_a_budget_without_its_objective(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        foldfx.compile(Router(), [foldfx.Example(call())], dynamic=False, **options)


def test_a_negative_budget_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No choice of tables takes fewer than zero bytes, so a search for one has no end."""
    left = iter(range(500))

    def counted(*args: Any) -> Any:
        assert next(left, None) is not None, "the search for a choice of negative size does not end"
        return cheapest(*args)

    cheapest = latency.cheapest_cut
    monkeypatch.setattr(latency, "cheapest_cut", counted)
    with pytest.raises(ValueError, match="max_table_bytes"):
        foldfx.compile(Router(), [foldfx.Example(call())], dynamic=False, objective="latency", max_table_bytes=-1)


@pytest.mark.parametrize("budget", [0, TABLE - 1, TABLE])
def test_the_budget_is_kept(budget: int, agree: Agree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foldfx.passes.pipeline.measure_side_by_side", lambda *_: FASTER)
    result = fold(Router(), agree, objective="latency", max_table_bytes=budget)
    added = {name: tensor for name, tensor in result.module.state_dict().items() if name.startswith("foldfx_tables")}
    assert sum(tensor.numel() * tensor.element_size() for tensor in added.values()) <= budget
    assert result.accepted is (budget >= TABLE)
    assert f"{PRODUCTS:,} multiply-adds a token become a gather of {OUT} elements" in reason(result)
    if not result.accepted:
        assert f"{TABLE:,} B, the budget is {budget:,} B" in reason(result)


@pytest.mark.parametrize("some", [True, False], ids=["a subset of the ids", "all ids"])
def test_the_budget_counts_all_that_a_fold_adds(some: bool, agree: Agree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers that say which row a reachable id has are bytes like those of the rows."""
    monkeypatch.setattr("foldfx.passes.pipeline.measure_side_by_side", lambda *_: FASTER)
    reachable = range(10, 20) if some else range(VOCABULARY)
    rows, numbers = len(reachable) * OUT * FLOAT, VOCABULARY if some else 0
    for budget, kept in ((rows + numbers, True), (rows + numbers - 1, False)):
        example = foldfx.Example((torch.randint(10, 20, (3, 5)), torch.randn(3, 5, WIDTH)))
        token = foldfx.TokenInput("ids", reachable=reachable)
        result = foldfx.compile(Router(), [example], tokens=[token], objective="latency", max_table_bytes=budget)
        added = [tensor for name, tensor in result.module.state_dict().items() if name.startswith("foldfx_tables")]
        assert sum(tensor.numel() * tensor.element_size() for tensor in added) == (rows + numbers if kept else 0)


@pytest.mark.parametrize("dynamic", [True, False])
def test_the_number_of_tokens_in_the_example_decides_nothing(
    dynamic: bool, agree: Agree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one token a gather of eight numbers is less work than products with 128, however many tokens the example has."""
    monkeypatch.setattr("foldfx.passes.pipeline.measure_side_by_side", lambda *_: FASTER)
    small = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    for shape in ((2, 3), (24, 17)):
        example = foldfx.Example((torch.randint(VOCABULARY, shape),))
        result = foldfx.compile(small, [example], dynamic=dynamic, objective="latency", max_table_bytes=1 << 20)
        assert "128 multiply-adds a token become a gather of 8 elements" in reason(result)
        assert result.accepted
        agree(small(*example.args), result.module(*example.args), max_abs=1e-5, relative_l2=1e-5)


@pytest.mark.parametrize(
    ("timing", "kept"), [(FASTER, True), (SLOWER, False), (EQUAL, False)], ids=["faster", "slower", "equal"]
)
def test_a_fold_is_kept_only_where_it_measures_faster(
    timing: Timing, kept: bool, agree: Agree, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides: list[set[str]] = []

    def measured(before: nn.Module, after: nn.Module, examples: Any) -> Timing:
        sides.extend((set(before.state_dict()), set(after.state_dict())))
        return timing

    monkeypatch.setattr("foldfx.passes.pipeline.measure_side_by_side", measured)
    model = Router()
    result = fold(model, agree, objective="latency", max_table_bytes=TABLE)
    before, after = sides
    assert before == set(model.state_dict())
    assert after & before == {"embedding.weight"}
    assert (result.accepted, result.status) == (kept, "accepted" if kept else "unchanged")
    assert set(result.module.state_dict()) == (after if kept else before)
    data = result.report.to_dict()
    assert data["timing"]["text"] == str(timing)
    assert str(timing) in str(result.report)
    if not kept:
        assert reason(result) == f"refused: measured slower: {timing}"
        assert data["rewrites"] == []


def test_bytes_do_not_ask_for_a_measurement(agree: Agree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foldfx.passes.pipeline.measure_side_by_side", lambda *_: pytest.fail("measured"))
    result = fold(Router(), agree)
    assert (result.accepted, result.report.to_dict()["timing"]) == (True, None)


def test_a_heavy_region_really_measures_faster(agree: Agree) -> None:
    """Two products of a million weights become a gather of eight numbers."""
    wide = nn.Sequential(nn.Embedding(VOCABULARY, 1024), nn.Linear(1024, 1024), nn.Linear(1024, OUT)).eval()
    example = foldfx.Example((torch.randint(VOCABULARY, (16, 12)),))
    result = foldfx.compile(wide, [example], objective="latency", max_table_bytes=TABLE)
    timing = result.report.to_dict()["timing"]
    assert result.accepted
    assert 0 < timing["after"] < timing["before"]
    agree(wide(*example.args), result.module(*example.args), max_abs=1e-5, relative_l2=1e-5)


class Sleeper(nn.Module):
    """Takes its time, notes when, and spoils its argument."""

    def __init__(self, seconds: float, log: list[float]) -> None:
        super().__init__()
        self.seconds, self.log = seconds, log

    def forward(self, x: Tensor) -> None:
        time.sleep(self.seconds)
        self.log.append(self.seconds)
        x.add_(1)


def test_two_modules_are_timed_turn_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "SECONDS", 0.0)
    log: list[float] = []
    slow, quick, example = Sleeper(4e-3, log), Sleeper(1e-3, log), foldfx.Example((torch.zeros(2),))
    timing = measure_side_by_side(slow, quick, [example, example])
    assert timing.before >= 2 * 4e-3
    assert 2 * 1e-3 <= timing.after < timing.before
    assert (timing.faster, measure_side_by_side(quick, slow, [example]).faster) == (True, False)
    assert torch.equal(example.args[0], torch.zeros(2))
    rounds = log[: len(log) // 4 * 4]
    assert all(sorted(rounds[place : place + 4]) == [1e-3, 1e-3, 4e-3, 4e-3] for place in range(0, 4 * timing.rounds, 4))


def test_the_text_of_a_measurement() -> None:
    assert str(Timing(2e-3, 8e-4, 21)) == (
        "2,000.0 µs → 800.0 µs a round of all examples (2.50×, median of 21 interleaved rounds, 1 threads)"
    )


@pytest.mark.parametrize("dynamic", [True, False])
def test_work_of_one_token(dynamic: bool) -> None:
    """A product costs two operations and four bytes a stored number, a read its row, anything else a row's bytes."""
    program = foldfx.capture(Router(), call(), dynamic=dynamic)
    facts = analyze_program(program)
    spent = [latency.work(node, facts) for node in facts if facts[node].token_only]
    products = [(WIDTH + 1) * WIDTH * (2 + FLOAT), (WIDTH + 1) * OUT * (2 + FLOAT)]
    assert spent == [0, WIDTH * FLOAT, *products]


def random_values() -> tuple[list[Candidate], dict[str, int], dict[str, int]]:
    """Candidates, bytes of their rows, and work a token."""
    rows, work = {}, {}
    candidates, vocabulary = [Candidate("ids", None, given=True)], random.choice((3, 40))
    for number in range(random.randint(2, 8)):
        name, width = f"v{number}", random.choice((2, 4, 8))
        read = random.sample([value.name for value in candidates], random.choice((1, 1, 2)) if number else 1)
        rows[name] = width * FLOAT
        work[name] = random.choice((width * FLOAT, width * random.choice((2, 4, 8)) * (2 + FLOAT)))
        table = None if random.random() < 0.1 else vocabulary * width * FLOAT
        demanded = random.random() < 0.3 or number == 0
        candidates.append(Candidate(name, table, tuple(read), (f"w{number}",), demanded))
    return candidates, rows, work


def every_choice(candidates: list[Candidate], rows: dict[str, int], work: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """(bytes of tables, work a token) of every set of tables, one lane each."""
    names = [value.name for value in candidates if value.table is not None]
    lanes = np.arange(1 << len(names))
    chosen = {name: (lanes >> bit & 1).astype(bool) for bit, name in enumerate(names)}
    wanted = {value.name: np.full(lanes.shape, value.demanded) for value in candidates}
    stored, spent = np.zeros(lanes.shape, np.int64), np.zeros(lanes.shape, np.int64)
    for value in reversed(candidates[1:]):
        table = chosen.get(value.name, np.zeros(lanes.shape, bool))
        run = wanted[value.name] & ~table
        stored += table * (value.table or 0)
        spent += table * rows[str(value.name)] + run * work[str(value.name)]
        for operand in value.operands:
            wanted[operand] |= run
    return stored, spent


@pytest.mark.parametrize("batch", range(4))
def test_the_fastest_cut_fits_and_no_choice_of_its_size_is_faster(batch: int) -> None:
    """Nor is it slower than no tables at all; where everything fits, nothing is faster."""
    for _ in range(60):
        candidates, rows, work = random_values()
        stored, spent = every_choice(candidates, rows, work)
        budget = random.choice((0, int(stored.max()), random.randint(0, int(stored.max()))))
        cut = fastest_cut(candidates, rows, work, budget)
        tables = sum(value.table or 0 for value in candidates if value.name in cut.tables)
        found = sum(rows[str(name)] for name in cut.tables) + sum(work[str(name)] for name in cut.online - {"ids"})
        assert tables <= budget
        assert found <= spent[0]
        assert found == spent[stored <= tables].min()
        if budget == stored.max():
            assert found == spent.min()
