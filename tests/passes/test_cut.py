"""The cut is optimal: against an exhaustive search over every set of tables, on random graphs."""

from __future__ import annotations

import itertools
import math
import random
import time
from dataclasses import dataclass

import networkx as nx
import numpy as np
import pytest

from foldfx.passes.cut import Candidate, Cut, _begun, cheapest_cut

BATCHES, GRAPHS, LARGEST = 20, 400, 12
"""8,000 graphs of up to 12 values."""


@dataclass(frozen=True)
class Problem:
    candidates: list[Candidate]
    weights: dict[str, int]


@dataclass(frozen=True)
class Optimum:
    """What an exhaustive search finds: the least cost, and the fewest steps (operations and lookups) at that cost."""

    cost: int
    steps: int


def random_problem() -> Problem:
    """Values that read earlier values and shared weights; some weights are held by others and cost nothing to keep."""
    size = random.randint(2, LARGEST)
    timed, rare_tables, most = random.random() < 0.3, random.random() < 0.3, random.choice((3, 24))
    weights = {f"w{number}": random.choice((0, random.randint(1, 60), random.randint(1, 60))) for number in range(5)}
    values = [Candidate("ids", None, given=True, demanded=random.random() < 0.05)]
    for number in range(1, size):
        earlier = [value.name for value in values]
        recent = earlier[-4:] if random.random() < 0.8 else earlier
        moves = random.random() < 0.2
        values.append(
            Candidate(
                f"v{number}",
                None if random.random() < (0.5 if rare_tables else 0.1) else random.randint(1, most),
                tuple(random.sample(recent, 1 if moves else random.randint(1, min(3, len(recent))))),
                () if moves else tuple(random.sample(sorted(weights), random.choice((0, 0, 1, 1, 2)))),
                demanded=number == size - 1 or random.random() < 0.25,
                moves=moves,
                online=random.randint(0, 12) if timed and not moves else 0,
            )
        )
    return Problem(values, weights)


def search(problem: Problem) -> Optimum:
    """Every subset of the tabulable values at once, one numpy lane each; values are walked from the last to the first."""
    choosable = [value.name for value in problem.candidates if value.table is not None]
    lanes = np.arange(1 << len(choosable))
    looked_up = {name: (lanes >> bit & 1).astype(bool) for bit, name in enumerate(choosable)}
    wanted = {value.name: np.full(lanes.shape, value.demanded) for value in problem.candidates}
    kept = {name: np.zeros(lanes.shape, bool) for name in problem.weights}
    cost, steps = np.zeros(lanes.shape, np.int64), np.zeros(lanes.shape, np.int64)
    for value in reversed(problem.candidates):
        table = looked_up.get(value.name, np.zeros(lanes.shape, bool))
        if value.given:
            continue
        run = wanted[value.name] & ~table
        cost += table * (value.table or 0) + run * value.online
        steps += table + run * (not value.moves)
        for operand in value.operands:
            wanted[operand] |= run
        for weight in value.weights:
            kept[weight] |= run
    cost += sum((kept[name] * price for name, price in problem.weights.items()), np.zeros(lanes.shape, np.int64))
    least = int(cost.min())
    return Optimum(least, int(steps[cost == least].min()))


def assert_feasible(problem: Problem, cut: Cut) -> None:
    """Looking up `tables` and computing `online` with `kept` gives everything demanded, at the cost claimed."""
    by_name = {value.name: value for value in problem.candidates}
    there = {value.name for value in problem.candidates if value.given} | cut.tables | cut.online
    assert {value.name for value in problem.candidates if value.demanded} <= there
    assert not cut.tables & cut.online
    assert all(by_name[name].table is not None for name in cut.tables)
    for name in cut.online:
        assert set(by_name[name].operands) <= there
        assert set(by_name[name].weights) <= cut.kept
    parts = [by_name[name].table or 0 for name in cut.tables] + [by_name[name].online for name in cut.online]
    assert cut.cost == sum(parts) + sum(problem.weights[name] for name in cut.kept)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_choice_is_cheaper(batch: int) -> None:
    for _ in range(GRAPHS):
        problem = random_problem()
        cut = cheapest_cut(problem.candidates, problem.weights)
        assert_feasible(problem, cut)
        moves = {value.name for value in problem.candidates if value.moves}
        assert Optimum(cut.cost, len(cut.tables) + len(cut.online - moves)) == search(problem), problem


def test_the_search_itself_by_hand() -> None:
    """embedding (50) -> up 4·7 -> down 2·7: one table of 14 against weights of 50 + 20 + 20."""
    values = [
        Candidate("ids", None, given=True),
        Candidate("e", 35, ("ids",), ("E",)),
        Candidate("up", 28, ("e",), ("U",)),
        Candidate("down", 14, ("up",), ("D",), demanded=True),
    ]
    free = Problem(values, {"E": 50, "U": 20, "D": 20})
    assert search(free) == Optimum(14, 1)
    assert cheapest_cut(values, free.weights) == Cut(frozenset({"down"}), frozenset(), frozenset(), 14)
    held = Problem(values, {"E": 0, "U": 0, "D": 10})
    assert search(held) == Optimum(10, 3)
    assert cheapest_cut(values, held.weights).tables == frozenset()


def chain(demanded: str, *tables: int, moves: frozenset[str] = frozenset()) -> Cut:
    """ids -> a -> b -> c with tables of these costs; a reads a weight of 100."""
    names = "abc"[: len(tables)]
    values = [Candidate("ids", None, given=True)]
    for name, before, table in zip(names, ("ids", *names), tables, strict=False):
        weights = ("E",) if name == "a" else ()
        values.append(Candidate(name, table, (before,), weights, demanded=name in demanded, moves=name in moves))
    return cheapest_cut(values, {"E": 100})


def test_a_tie_is_cut_deeper() -> None:
    """Equal bytes: the last table saves the operations before it. One byte more, and the cut moves up."""
    assert chain("c", 7, 7, 7).tables == {"c"}
    assert chain("c", 7, 7, 8).tables == {"b"}
    assert chain("c", 6, 7, 8).tables == {"a"}


def test_a_tie_stays_behind_a_mere_rearrangement() -> None:
    """A table of what is rearranged serves as well, and as cheaply; where the rearranged value is smaller, it does not."""
    assert chain("c", 7, 7, 7, moves=frozenset("c")).tables == {"b"}
    assert chain("c", 7, 7, 6, moves=frozenset("c")).tables == {"c"}


def test_a_tie_looks_up_the_fewest_tables() -> None:
    """Three parts of one value, at 1 + 2 + 4 bytes against 7; one byte more for the whole, and they stand alone."""
    for whole, tables in ((7, {"a"}), (8, {"b", "c", "d"})):
        values = [Candidate("ids", None, given=True), Candidate("a", whole, ("ids",), ("E",))]
        parts = zip("bcd", (1, 2, 4), strict=True)
        values += [Candidate(name, table, ("a",), demanded=True, moves=True) for name, table in parts]
        assert cheapest_cut(values, {"E": 100}).tables == tables


def test_a_value_demanded_twice_over_is_paid_once() -> None:
    """b and c are both read: a table of b serves c as well unless two tables are cheaper than b's operation is worth."""
    assert chain("bc", 7, 7, 7) == Cut(frozenset({"b"}), frozenset({"c"}), frozenset(), 7)
    assert chain("ab", 7, 7).tables == {"a"}


def test_what_can_be_neither_computed_nor_tabulated_is_refused() -> None:
    """A weight that cannot be had, at no price."""
    ids = Candidate("ids", None, given=True)
    lost = {"E": math.inf}
    with pytest.raises(ValueError, match="neither computed nor tabulated"):
        cheapest_cut([ids, Candidate("a", None, ("ids",), ("E",), demanded=True)], lost)  # type: ignore[arg-type]
    assert cheapest_cut([ids, Candidate("a", 3, ("ids",), ("E",), demanded=True)], lost).tables == {"a"}  # type: ignore[arg-type]
    undemanded = [ids, Candidate("a", None, ("ids",), ("E",)), Candidate("b", 4, ("ids",), demanded=True)]
    assert cheapest_cut(undemanded, lost).cost == 0  # type: ignore[arg-type]


def cuts(graph: nx.DiGraph, nodes: list[int]) -> dict[tuple[int, ...], float]:
    """What every cut costs, by the nodes on the source's side."""
    sides = [side for size in range(len(nodes) + 1) for side in itertools.combinations(nodes, size)]
    edges = list(graph.edges.data("capacity", math.inf))
    return {side: sum(c for u, v, c in edges if u in ("source", *side) and v not in ("source", *side)) for side in sides}


def test_the_first_sweep_makes_every_cut_equally_cheaper() -> None:
    """And what was sent must be returnable, and what rests at a node must count: without either, they are not."""
    sent_back = rested = 0
    for _ in range(300):
        nodes, graph = list(range(6)), nx.DiGraph()
        graph.add_nodes_from(("source", "sink", *nodes))
        graph.add_edges_from(("source", node) for node in nodes if node == 0 or random.random() < 0.2)
        for u, v in itertools.combinations((*nodes, "sink"), 2):
            if random.random() < 0.5:
                graph.add_edge(u, v, capacity=random.choice((1, 3, 9, 9, math.inf)))
        rest = _begun(graph)
        before, after = cuts(graph, nodes), cuts(rest, nodes)
        assert {side for side in before if before[side] == math.inf} == {side for side in after if after[side] == math.inf}
        assert len({before[side] - after[side] for side in before if before[side] < math.inf}) <= 1
        back = [(u, v) for u, v in rest.edges if not graph.has_edge(u, v) and u != "source"]
        resting = [(u, v) for u, v in rest.edges if not graph.has_edge(u, v) and u == "source"]
        for each in (back, resting):
            without = rest.copy()
            without.remove_edges_from(each)
            wrong = cuts(without, nodes)
            differ = len({before[side] - wrong[side] for side in before if before[side] < math.inf}) > 1
            sent_back += differ and each is back
            rested += differ and each is resting
    assert min(sent_back, rested) > 10, "without either kind of edge, the cuts are no longer equally cheaper"


def test_the_first_sweep_does_most_of_a_ladder() -> None:
    """A strip in which each value is computed from the two before it, so that nothing contracts."""
    graph: nx.DiGraph = nx.DiGraph()
    for step in range(300, 0, -1):
        graph.add_edge(("y", step), ("x", step), capacity=1600)
        graph.add_edge(("x", step), "sink", capacity=32)
        graph.add_edges_from((("x", step), ("y", before)) for before in (step - 1, step - 2) if before > 0)
        if step % 100 == 0:
            graph.add_edge("source", ("y", step))
    least, _ = nx.minimum_cut(graph, "source", "sink")
    left, _ = nx.minimum_cut(_begun(graph), "source", "sink")
    assert left < least / 10


def test_a_graph_of_5000_values_takes_about_a_second() -> None:
    """Residual blocks of a norm, a gate and two projections, every tenth value read from outside.

    Six are allowed, because the machine may be shared.
    """
    values, weights = [Candidate("ids", None, given=True)], {}
    while len(values) < 5000:
        number = len(values)
        operands = tuple({values[-1].name, values[max(number - random.choice((1, 2, 5)), 0)].name})
        weights[f"w{number}"] = random.randint(1, 4000)
        table = None if number % 17 == 0 else random.randint(1, 4000)
        reads = (f"w{number}",) if number % 2 else ()
        values.append(Candidate(f"v{number}", table, operands, reads, demanded=number % 10 == 0))
    began = time.process_time()
    cut = cheapest_cut(values, weights)
    seconds = time.process_time() - began
    assert_feasible(Problem(values, weights), cut)
    assert seconds < 6
