"""Graphs, facts and a report that no model made: of any size, with any text in their names."""

from __future__ import annotations

from typing import Any

from foldfx.inspection.html import render
from foldfx.inspection.outline import Held, Outline, Value

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">'

FIGURES = {"max_abs": 0.0, "relative_l2": 0.0, "exact": True, "bitwise": True}
REPORT: dict[str, Any] = {
    "schema_version": 1,
    "status": "unchanged",
    "observables": [],
    "tokens": {},
    "storage": {"before": {"logical": 8, "backing": 8}, "after": {"logical": 8, "backing": 8}},
    "outcomes": [],
    "rewrites": [],
    "kernels": [],
    "blockers": [],
    "decisions": [],
    "verification": {
        "verdict": "equivalent_on",
        "because": [],
        "examples": 1,
        "outputs": FIGURES,
        "layouts": [],
        "probes": {},
        "ranks": {},
        "limits": {"max_abs": {"torch.float32": 1e-5}},
    },
    "counterexamples": [],
    "trials": [],
    "specialised": [],
    "dynamic": {},
    "timing": None,
}


def planted(data: Any) -> Any:
    """The same report with markup in every sentence and name; keys, figures and verdicts stay."""
    fixed = {"accepted", "applied", "equivalent_on", "table", "decision"}
    if isinstance(data, dict):
        return {key: planted(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [planted(value) for value in data]
    return data + EVIL if isinstance(data, str) and data not in fixed else data


def planted_page(report: dict[str, Any]) -> str:
    """A run's page with markup in its title, steps, modules, state, values, tokens and sentences."""
    before, after = chain(4, EVIL), chain(4, EVIL, changed=2)
    facts = {"values": [fact(value, EVIL) for value in before.values]}
    data = planted(report)
    data["tokens"] = {name + EVIL: domain for name, domain in data["tokens"].items()}
    return render(data, [("captured", before), (EVIL, after), (f"</title>{EVIL}", before)], facts, title=EVIL)


def chain(count: int, label: str = "", changed: int = 0) -> Outline:
    """`count` layers, of which every `changed`-th is a lookup."""
    values = [Value("input ids #1", "ids", "input", "ids", type="int64[2, 3]")]
    state = {}
    for number in range(count):
        name, module = f"layers.{number}.weight{label}", f"model.layers.{number}.mlp{label}"
        state[name] = Held("parameter", "float32[512, 512]", 1 << 20, 1 << 20, digest="x")
        if changed and number and number % changed == 0:
            key = f"foldfx.lookup.default #{number}"
            call = ("foldfx.lookup.default", "{0}, 'embedding'", (values[-1].key,))
            more = {"made_by": "fold_tokens", "stands_for": (f"linear_{number}{label}",)}
        else:
            key, more = f"aten.linear.default in {module} #{number}", {}
            call = ("aten.linear.default", "{0}, {1}", (values[-1].key, f"state:{name}"))
        called = f"lookup_{number}" if more else f"linear_{number}"
        values.append(
            Value(key, called + label, "call", *call, "float32[2, 3, 512]", "" if more else module, f"m.py:{number}", **more)
        )
    values.append(Value("output #1", "output", "output", "output", "({0},)", (values[-1].key,)))
    return Outline("captured", tuple(values), state)


def fact(value: Value, label: str = "") -> dict[str, Any]:
    sentence = f"{value.target} reads {value.name}, which depends on context{label}"
    at = f"module {value.module}, /some/folder/{value.source}"
    plain = {"op": value.target, "depends_on": ["context"], "token_only": False, "rows": None}
    return {"name": value.name, **plain, "because": sentence, "stands_on": [], "at": at}


def chain_page(count: int, changed: int) -> str:
    """The page of `count` layers in three steps, every `changed`-th of them rewritten in the first."""
    before, after = chain(count), chain(count, changed=changed)
    facts = {"values": [fact(value) for value in before.values]}
    return render(REPORT, [("captured", before), ("fold_tokens", after), ("lowering", after)], facts)
