"""A rewrite drawn: the values it removed and added, with what they read and what reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx

from ..diff import Diff
from ..lineage import Lineage
from ..outline import STATE, Outline, Value
from .markup import Html, element
from .parts import cut

MOST_DRAWN = 8
MOST_NODES = 48
"""Values of one drawing; the rest is counted."""
MOST_AROUND = 6
"""Readers and operands that stay, drawn on each side."""
BOX, GAP, TALL, LAYER = 172, 14, 40, 70
CHARACTERS = 23
SCALED = 2200
"""Pixels of a drawing that is made smaller to fit the page; a wider one scrolls."""


@dataclass(frozen=True)
class _Box:
    """One drawn value: class of page.css, two lines of text, and the name that opens what is known about it."""

    kind: str
    name: str
    what: str
    opens: str = ""


def neighbourhoods(diff: Diff, before: int, after: int) -> Html | None:
    """A picture of each of the first `MOST_DRAWN` rewrites; None where there is none.

    Args:
        diff: between two steps.
        before, after: their places in the page's data.
    """
    if not diff.lineage:
        return None
    drawn = [_drawing(diff, group, before, after) for group in diff.lineage[:MOST_DRAWN]]
    rest = len(diff.lineage) - MOST_DRAWN
    more = element("p", f"{rest} more rewrites are in the lines below.", class_="quiet") if rest > 0 else None
    return element("div", drawn, more)


def _drawing(diff: Diff, group: Lineage, before: int, after: int) -> Html:
    graph, boxes, left_out = _graph(diff, group)
    places = _placed(graph, boxes)
    wide = max(x for x, _ in places.values()) + BOX + 4
    tall = max(y for _, y in places.values()) + TALL + 8
    edges = [_edge(places[one], places[other], _kind_of(boxes[one], boxes[other])) for one, other in graph.edges]
    shapes = [_shape(boxes[key], places[key], after if boxes[key].kind != "removed" else before) for key in graph.nodes]
    by = f" by {', '.join(group.by)}" if group.by else ""
    title = f"{group.kind}{by}: {_several(diff.before, group.before)} → {_several(diff.after, group.after) or 'nothing'}"
    size = {"viewBox": f"0 0 {wide} {tall}", "width": wide, "height": tall, "class_": "fits" if wide <= SCALED else None}
    picture = element("svg", edges, shapes, **size, role="group", aria_label=title)
    note = element("p", f"{left_out} more values of this rewrite are not drawn.", class_="quiet") if left_out else None
    return element("figure", element("figcaption", title), element("div", picture, class_="wide"), note, class_="graph")


def _several(outline: Outline, keys: tuple[str, ...]) -> str:
    wanted = set(keys)
    names = [value.name for value in outline.values if value.key in wanted]
    return ", ".join(names if len(names) <= 4 else [*names[:3], f"… {len(names) - 4} more", names[-1]])


def _graph(diff: Diff, group: Lineage) -> tuple[nx.DiGraph, dict[str, _Box], int]:
    """The rewrite and what surrounds it: after it, and the removed values as they were before."""
    old = {value.key: value for value in diff.before.values}
    new = {value.key: value for value in diff.after.values}
    gone, came = group.before[: MOST_NODES // 2], group.after[: MOST_NODES // 2]
    graph: nx.DiGraph = nx.DiGraph()
    boxes: dict[str, _Box] = {}
    for keys, values, outline, kind in ((gone, old, diff.before, "removed"), (came, new, diff.after, "added")):
        around = 0
        for key in keys:
            boxes[key] = _box(values[key], kind)
            graph.add_node(key)
        for key in keys:
            for operand in values[key].operands:
                if operand not in boxes and operand not in {*group.before, *group.after}:
                    boxes[operand] = _state(operand, outline) if operand.startswith(STATE) else _box(values[operand], "stays")
                if operand in boxes:
                    graph.add_edge(operand, key)
        chosen = set(keys)
        for value in outline.values:
            if value.key in boxes and boxes[value.key].kind != "stays":
                continue
            for operand in value.operands:
                known = value.key in boxes
                if operand in chosen and (known or (value.key not in {*group.before, *group.after} and around < MOST_AROUND)):
                    around += not known
                    boxes.setdefault(value.key, _box(value, "stays"))
                    if not (graph.has_node(value.key) and nx.has_path(graph, value.key, operand)):
                        graph.add_edge(operand, value.key)
    return graph, boxes, len(group.before) + len(group.after) - len(gone) - len(came)


def _box(value: Value, kind: str) -> _Box:
    target = value.target.removeprefix("aten.").removesuffix(".default")
    return _Box(kind, value.name, f"{target} {value.type}".strip(), value.name)


def _state(operand: str, outline: Outline) -> _Box:
    name = operand.removeprefix(STATE)
    held = outline.state.get(name)
    return _Box("state", name, f"{held.type}, {held.bytes:,} B" if held else "constant")


def _placed(graph: nx.DiGraph, boxes: Mapping[str, _Box]) -> dict[str, tuple[float, float]]:
    """From sources down to readers; what went in a lane on the left, what came on the right, what stays between them.

    A value stands in the layer of the longest way to it, a source just above its first reader; state with its reader.
    """
    layer = {key: number for number, keys in enumerate(nx.topological_generations(graph)) for key in keys}
    lane = {key: _LANES.get(boxes[key].kind, 1) for key in graph.nodes}
    for key in graph.nodes:
        if readers := list(graph.successors(key)):
            if not graph.in_degree(key):
                layer[key] = min(layer[reader] for reader in readers) - 1
            if boxes[key].kind == "state":
                lane[key] = lane[readers[0]]
    cells: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for key in graph.nodes:
        cells[lane[key], layer[key]].append(key)
    wide = [max((len(keys) for (which, _), keys in cells.items() if which == each), default=0) for each in range(3)]
    top = min(layer.values())
    places: dict[str, tuple[float, float]] = {}
    for (which, number), keys in cells.items():
        first = sum(wide[:which]) + (wide[which] - len(keys)) / 2
        for place, key in enumerate(keys):
            places[key] = (4 + (first + place) * (BOX + GAP), 4 + (number - top) * LAYER)
    return places


_LANES = {"removed": 0, "added": 2}


def _kind_of(one: _Box, other: _Box) -> str:
    return next((box.kind for box in (one, other) if box.kind in _LANES), "")


def _edge(one: tuple[float, float], other: tuple[float, float], kind: str) -> Html:
    x1, y1, x2, y2 = one[0] + BOX / 2, one[1] + TALL, other[0] + BOX / 2, other[1]
    half = (y1 + y2) / 2
    return element(
        "path",
        d=f"M{x1:.1f} {y1:.1f}C{x1:.1f} {half:.1f} {x2:.1f} {half:.1f} {x2:.1f} {y2 - 2:.1f}",
        class_=f"edge {kind}".strip(),
    )


_SIGNS = {"removed": "− ", "added": "+ "}


def _shape(box: _Box, place: tuple[float, float], step: int) -> Html:
    x, y = place
    shown = (cut(_SIGNS.get(box.kind, "") + box.name, CHARACTERS), cut(box.what, CHARACTERS))
    texts = [
        element("text", text, x=f"{x + BOX / 2:.1f}", y=f"{y + down:.1f}", text_anchor="middle", class_=kind)
        for text, down, kind in zip(shown, (17, 32), ("name", "what"), strict=True)
    ]
    shape = element("rect", x=f"{x:.1f}", y=f"{y:.1f}", width=BOX, height=TALL, rx=6)
    title = element("title", f"{box.name}, {box.what} ({box.kind})")
    if not box.opens:
        return element("g", title, shape, texts, class_=f"box {box.kind}")
    opens = {"role": "button", "tabindex": 0, "data_node": box.opens, "data_step": step}
    return element("g", title, shape, texts, class_=f"box {box.kind}", **opens)
