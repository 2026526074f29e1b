"""The cheapest set of tables, as a minimum cut.

Every token-only value v has two binary variables, every weight w one:

    y[v] = 1   v is available at run time        x[v] = 1   v is computed online        z[w] = 1   w is kept

and the total to minimise is a sum of terms "pay c if u = 1 and v = 0":

    y[v] ∧ ¬x[v]   pays the bytes of v's table          (available, but not computed: it is looked up)
    x[v] ∧ ¬y[p]   pays ∞  for each operand p of v      (computing v needs its operands)
    x[v] ∧ ¬z[w]   pays ∞  for each weight w v reads
    z[w]           pays the bytes of w                  (0 where someone else holds w anyway)
    x[v]           pays the cost of computing v         (0 where only bytes count)
    ¬y[v]          pays ∞  where v is demanded from outside

With 1 = source side and 0 = sink side each term is one edge u → v of capacity c, so the least total is the capacity of
a minimum s-t cut and the cut's source side is an optimal assignment (Picard 1976: minimising a quadratic
pseudo-Boolean function whose every term is of this form, i.e. submodular, is a minimum cut). This holds for any
acyclic graph: diamonds, joins, several outputs, shared weights.

Costs are compared in order (cost, operations run online and lookups, tables behind a mere rearrangement): the second
and third only break ties. They are folded into one integer, so the solution stays exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import networkx as nx
from networkx.algorithms.flow import preflow_push

Name = Hashable


@dataclass(frozen=True)
class Candidate:
    """One token-only value.

    Attributes:
        name: identifies it.
        table: the cost of its table; None where it cannot be tabulated.
        operands: the token-only values it is computed from.
        weights: the state it reads.
        demanded: something outside the problem reads it.
        moves: it only rearranges an operand, at no cost.
        given: it is there at run time for nothing (the ids).
        online: the cost of computing it.
    """

    name: Name
    table: int | None
    operands: tuple[Name, ...] = ()
    weights: tuple[Name, ...] = ()
    demanded: bool = False
    moves: bool = False
    given: bool = False
    online: int = 0


@dataclass(frozen=True)
class Cut:
    """An optimal choice.

    Attributes:
        tables: the values to look up.
        online: the values to compute.
        kept: the weights that computing them needs.
        cost: tables, kept weights and computation.
    """

    tables: frozenset[Name]
    online: frozenset[Name]
    kept: frozenset[Name]
    cost: int


def cheapest_cut(candidates: Sequence[Candidate], weights: Mapping[Any, int]) -> Cut:
    """The choice of tables with the least cost of tables, kept weights and computation.

    Args:
        candidates: the values, operands before their readers.
        weights: what each weight costs where it is kept; 0 for one that is held elsewhere in any case.

    Raises:
        ValueError: a demanded value can be neither computed nor tabulated.
    """
    wanted = _needed(candidates)
    step = 2 * len(wanted) + 1
    values = _contracted([_scaled(each, step, scale=len(wanted) * (step + 2) + 1) for each in wanted], weights)
    computed = {value.name for value in values if value.table is None and not value.given}
    readers = Counter(weight for value in values for weight in value.weights)
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(("source", "sink"))
    for value in values:
        y, x = _available(value.name, computed), ("x", value.name)
        if value.demanded:
            graph.add_edge("source", y)
        if value.given:
            continue
        if value.table is not None:
            graph.add_edge(y, x, capacity=value.table)
        alone = sum(weights[weight] for weight in value.weights if readers[weight] == 1)
        if work := value.online + alone * value.scale:
            graph.add_edge(x, "sink", capacity=work)
        for operand in value.operands:
            graph.add_edge(x, _available(operand, computed))
        for weight in value.weights:
            if weights[weight] and readers[weight] > 1:
                graph.add_edge(x, ("z", weight))
                graph.add_edge(("z", weight), "sink", capacity=weights[weight] * value.scale)
    try:
        _, (ones, _) = nx.minimum_cut(_begun(graph), "source", "sink", flow_func=preflow_push, global_relabel_freq=3)
    except nx.NetworkXUnbounded as error:
        raise ValueError("a demanded value can be neither computed nor tabulated") from error
    online = frozenset(name for value in values if ("x", value.name) in ones for name in value.members)
    tables = frozenset(v.name for v in values if ("y", v.name) in ones and v.name not in online and not v.given)
    kept = frozenset(weight for value in wanted if value.name in online for weight in value.weights)
    cost = sum(value.table or 0 for value in wanted if value.name in tables)
    cost += sum(value.online for value in wanted if value.name in online)
    return Cut(tables, online, kept, cost + sum(weights[weight] for weight in kept))


def _begun(graph: nx.DiGraph) -> nx.DiGraph:
    """What one sweep from the source to the sink leaves to do: a smaller flow with the same minimum cuts.

    The sweep sends along an edge at most its capacity, and out of a node at most what came in; the rest stays there.
    What was sent across a cut, less what was sent back across it, is what arrived at the sink, the same for every cut,
    and what stays at other nodes beyond the cut. So all cuts cost equally less where each edge keeps what is left of
    its capacity, what was sent may be sent back, and the source has an edge to each node for what stays there.

    The sweep goes to the nodes nearest the sink first, and sends to none more than all that it could pass on.
    """
    order = list(nx.topological_sort(graph))
    place = {node: number for number, node in enumerate(order)}
    finite = [limit for _, _, limit in graph.edges.data("capacity", math.inf) if limit != math.inf]
    most = 1 + sum(finite)
    edges = {node: [(to, edge.get("capacity", math.inf)) for to, edge in graph.adj[node].items()] for node in order}
    room = dict.fromkeys(order, 0) | {"sink": most}
    for node in reversed(order):
        edges[node].sort(key=lambda edge: -place[edge[0]])
        room[node] += sum(min(limit, room[to]) for to, limit in edges[node])
    there = dict.fromkeys(order, 0) | {"source": room["source"]}
    rest: nx.DiGraph = nx.DiGraph()
    rest.add_nodes_from(graph)
    for node in order:
        for to, limit in edges[node]:
            sent = min(there[node], limit, room[to] - there[to])
            there[node] -= sent
            there[to] += sent
            if sent < limit:
                rest.add_edge(node, to, capacity=limit - sent)
            if sent and node != "source" and to != "sink":
                rest.add_edge(to, node, capacity=sent)
        if node not in ("source", "sink") and there[node] and not rest.has_edge("source", node):
            rest.add_edge("source", node, capacity=there[node])
    return rest


def _available(name: Name, computed: Set[Name]) -> tuple[str, Name]:
    """The node of y; where a value has no table, y and x are one."""
    return ("x" if name in computed else "y", name)


@dataclass
class _Value:
    """A value of the flow problem, costs scaled so that the tie breakers fit below one unit of cost.

    It stands for `members`: values computed online exactly when it is.
    """

    name: Name
    table: int | None
    online: int
    operands: set[Name]
    weights: set[Name]
    demanded: bool
    given: bool
    members: list[Name]
    scale: int


def _contracted(wanted: Sequence[_Value], weights: Mapping[Any, int]) -> list[_Value]:
    """The same problem with fewer values and fewer tables to choose from.

    A value whose table costs more than tables of all its operands, its weights and its computation has no table in
    any optimum.

    A value p with one reader v, and demanded by nobody, is needed exactly when v is computed. Where a table of p and
    then computing v costs no less than a table of v, some optimum has no table of p: p is computed with v, and both
    become one. Done from the last value to the first, this takes whole chains and diamonds into one.
    """
    values = {each.name: each for each in wanted}
    tables = {name: 0 if value.given else value.table for name, value in values.items()}
    for value in values.values():
        online = value.online + value.scale * sum(weights[weight] for weight in value.weights)
        below = [tables[operand] for operand in value.operands]
        known = [table for table in below if table is not None]
        if value.table is not None and len(known) == len(below) and sum(known) + online < value.table:
            value.table = None
    readers: dict[Name, set[Name]] = {name: set() for name in values}
    for value in values.values():
        for operand in value.operands:
            readers[operand].add(value.name)
    for p in reversed(list(values.values())):
        if p.given or p.demanded or len(readers[p.name]) != 1:
            continue
        v = values[next(iter(readers[p.name]))]
        if p.table is not None and (v.table is None or p.table + v.online < v.table):
            continue
        v.online += p.online
        v.operands = (v.operands - {p.name}) | p.operands
        v.weights |= p.weights
        v.members += p.members
        for operand in p.operands:
            readers[operand] = (readers[operand] - {p.name}) | {v.name}
        del values[p.name]
    return list(values.values())


def _scaled(value: Candidate, step: int, scale: int) -> _Value:
    """With the tie breakers: a lookup or an operation counts `step`, a table 1, one behind a mere rearrangement 1 more.

    A step is more than all tables together can count, a unit of cost more than all steps and tables.
    """
    return _Value(
        value.name,
        None if value.table is None else value.table * scale + step + 1 + value.moves,
        value.online * scale + (0 if value.moves else step),
        set(value.operands),
        set(value.weights),
        value.demanded,
        value.given,
        [value.name],
        scale,
    )


def _needed(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The demanded values and what they are computed from."""
    by_name = {value.name: value for value in candidates}
    needed = set()
    stack = [value.name for value in candidates if value.demanded]
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack.extend(by_name[name].operands)
    return [value for value in candidates if value.name in needed]
