"""A time budget cuts single-row calls down to a stratified sample with the fragile rows in it, and the report says so."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.passes import Pipeline
from foldfx.passes.tables.runner import Ids, RegionRunner
from foldfx.passes.tables.tabulate import Call
from foldfx.passes.verification import check_tables, sample
from foldfx.passes.verification.layouts import Layout
from foldfx.passes.verification.sample import FRAGILE, TRIALS, sampled

VOCABULARY, WIDTH, OUT = 400, 16, 4
TINY = 1e-9


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, OUT)
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        return torch.tanh(self.up(self.embedding(ids))) + hidden


def examples() -> list[foldfx.Example]:
    return [foldfx.Example((torch.randint(VOCABULARY, (2, 3)), torch.randn(2, 3, OUT)))]


def covered(result: foldfx.Result) -> dict[str, str]:
    """What the report says of each layout's rows."""
    lines = re.findall(
        r"table of tanh, (as built|1-D chunk|2-D|strided|scalar|empty) [^:]*: ([^,]*ids|no rows),", str(result.report)
    )
    return dict(lines)


def scalar(result: foldfx.Result) -> dict[str, object]:
    (found,) = [each for each in result.report.data["verification"]["layouts"] if each["layout"] == "scalar"]
    return found  # type: ignore[no-any-return]


# The report


def test_a_budget_that_does_not_suffice_is_said_and_the_bulk_layouts_stay_whole() -> None:
    result = foldfx.compile(Model(), examples(), time_budget=TINY)
    assert result.accepted
    said = covered(result)
    tokens = scalar(result)["tokens"]
    assert isinstance(tokens, int)
    assert 1 <= tokens <= 1 + FRAGILE
    assert said["scalar"] == f"sampled {tokens} of {VOCABULARY} ids"
    assert {said[name] for name in ("as built", "1-D chunk", "2-D", "strided")} == {f"full domain of {VOCABULARY} ids"}
    assert re.fullmatch(
        r"(.*; )?a stratified sample and the \d+ rows that deviated most, in 1e-09 s", str(scalar(result)["note"])
    )


@pytest.mark.parametrize("budget", [None, 600.0], ids=["none", "one that suffices"])
def test_every_row_is_called_without_a_budget_and_within_one_that_suffices(budget: float | None) -> None:
    result = foldfx.compile(Model(), examples(), time_budget=budget)
    assert covered(result)["scalar"] == f"full domain of {VOCABULARY} ids"
    assert scalar(result)["tokens"] == VOCABULARY
    assert "sample" not in str(scalar(result)["note"])


def test_the_pipelines_own_budget_counts_and_that_of_the_compile_when_revalidated() -> None:
    result = foldfx.compile(Model(), examples(), pipeline=Pipeline(time_budget=TINY))
    assert covered(result)["scalar"].startswith("sampled ")
    (found,) = [each for each in result.revalidate(examples()).layouts if each.layout == "scalar"]
    assert found.tokens < found.domain == VOCABULARY


@pytest.mark.parametrize("budget", [0, -1, -0.5, float("nan"), float("inf")])
def test_a_budget_that_is_not_positive_and_finite_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="time_budget must be a positive number of seconds"):
        foldfx.compile(Model(), examples(), time_budget=budget)
    with pytest.raises(ValueError, match="time_budget must be a positive number of seconds"):
        Pipeline(time_budget=budget)


def test_a_budget_beside_a_pipeline_is_refused() -> None:
    with pytest.raises(ValueError, match="time_budget goes to the pipeline"):
        foldfx.compile(Model(), examples(), pipeline=Pipeline(), time_budget=1.0)


# Fragile rows

FRAGILE_IDS = (97, 131, 340)


class Fragile(RegionRunner):
    """Some rows come out otherwise, within the limits, where not as many are asked for as tables are built with."""

    def __call__(self, ids: Ids) -> list[Tensor]:
        (given,) = ids.values()
        found = super().__call__(ids)
        if given.numel() == VOCABULARY:
            return found
        moved = torch.isin(given, torch.tensor(FRAGILE_IDS))[..., None] * 1e-6
        return [value + moved for value in found]


class Recorded(Fragile):
    """Remembers which ids were asked for one at a time."""

    asked: set[int]

    def __call__(self, ids: Ids) -> list[Tensor]:
        (given,) = ids.values()
        if given.numel() == 1:
            self.asked.add(int(given))
        return super().__call__(ids)


def test_rows_that_deviated_in_bulk_are_always_called_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorded, "asked", set(), raising=False)
    monkeypatch.setattr(check_tables, "RegionRunner", Recorded)
    result = foldfx.compile(Model(), examples(), time_budget=TINY)
    assert result.accepted
    assert set(FRAGILE_IDS) <= Recorded.asked
    assert len(Recorded.asked) < VOCABULARY
    layouts = {each["layout"]: each for each in result.report.data["verification"]["layouts"]}
    assert layouts["as built"]["bitwise"]
    for name in ("1-D chunk", "scalar"):
        assert 8e-7 < layouts[name]["max_abs"] < 2e-6


# `sampled` itself, with calls that take a second each


class Clock:
    """Moves when a call is made, or not at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0) -> None:
        self.now, self.seconds, self.calls = 0.0, seconds, 0
        monkeypatch.setattr(sample.time, "perf_counter", lambda: self.now)

    def __call__(self, ids: Ids) -> list[Tensor]:
        self.now += self.seconds
        self.calls += 1
        return []


def one_by_one(rows: Tensor) -> Iterator[Call]:
    return (Call({"ids": rows[place]}, rows[place : place + 1]) for place in range(rows.numel()))


def layout(domain: int, note: str = "") -> Layout:
    return Layout("scalar", "[]", torch.arange(domain), one_by_one, note)


def cut(clock: Clock, domain: int, budget: float, deviation: Tensor | None = None, note: str = "") -> Layout:
    return sampled(layout(domain, note), clock, budget, torch.zeros(domain) if deviation is None else deviation)  # type: ignore[arg-type]


def missed(rows: Tensor, domain: int, strata: int) -> int:
    """How many of as many equal stretches of the domain no row reaches into."""
    edges = torch.arange(strata + 1, dtype=torch.float64) * domain / strata
    first = torch.searchsorted(rows.double(), edges[:-1].floor())
    return int((rows.double()[first.clamp_max(rows.numel() - 1)] >= edges[1:]).sum())


@pytest.mark.parametrize(("domain", "budget"), [(100, 10), (1000, 1), (1000, 37), (1000, 500), (1000, 999), (4097, 1000)])
def test_every_stratum_has_a_row(domain: int, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = cut(Clock(monkeypatch), domain, budget).rows
    assert missed(rows, domain, budget) == 0
    assert budget / 2 <= rows.numel() <= budget
    assert torch.equal(rows, rows.unique())
    assert int(rows[0]) >= 0
    assert int(rows[-1]) < domain


@pytest.mark.parametrize("strata", [100_000, 60_001])
def test_every_stratum_of_a_large_domain_has_a_row(strata: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missed(cut(Clock(monkeypatch), 300_000, strata).rows, 300_000, strata) == 0


def test_the_sample_is_the_same_every_time_and_only_a_few_calls_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    one, other = cut(clock, 1000, 50), cut(clock, 1000, 50)
    assert torch.equal(one.rows, other.rows)
    assert clock.calls == 2 * TRIALS


def test_fragile_rows_are_in_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    deviation = torch.zeros(5000)
    deviation[[7, 1234, 4999]] = torch.tensor([1e-9, torch.inf, 1e-6])
    found = cut(Clock(monkeypatch), 5000, 1, deviation, "ids have 2 dimension(s)")
    assert {7, 1234, 4999} <= set(found.rows.tolist())
    assert found.rows.numel() in (3, 4)
    assert found.note == "ids have 2 dimension(s); a stratified sample and the 3 rows that deviated most, in 1 s"


def test_of_many_rows_that_deviate_the_worst_are_in_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    deviation = torch.rand(5000) + 0.1
    found = cut(Clock(monkeypatch), 5000, 10, deviation)
    assert set(deviation.topk(FRAGILE).indices.tolist()) <= set(found.rows.tolist())
    assert found.rows.numel() <= FRAGILE + 10


def test_a_row_that_did_not_deviate_is_not_called_fragile(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cut(Clock(monkeypatch), 1000, 10)
    assert found.rows.numel() == 10
    assert "and the 0 rows that deviated most" in found.note


@pytest.mark.parametrize(("domain", "budget", "seconds"), [(1000, 1000, 1.0), (1000, 2000, 1.0), (20, 20, 1.0), (1000, 1, 0.0)])
def test_a_layout_that_fits_stays_as_it_is(domain: int, budget: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = layout(domain)
    assert sampled(whole, Clock(monkeypatch, seconds), budget, torch.ones(domain)) is whole  # type: ignore[arg-type]
