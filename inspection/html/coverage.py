"""What the evidence of a run does not cover, in sentences that follow from its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def not_covered(report: Mapping[str, Any]) -> list[str]:
    """The limits of the evidence; the last ones hold for every run."""
    found = report["verification"]
    examples = found["examples"]
    sentences = [
        f"What depends on more than token ids was compared on {examples:,} example call(s) and no others."
        if examples
        else "No complete outputs were compared."
    ]
    for layout in found["layouts"]:
        if 0 < layout["tokens"] < layout["domain"]:
            what = f"{layout['kind']} {layout['table']}, {layout['layout']}"
            sentences.append(
                f"Of {what}, {layout['tokens']:,} of {layout['domain']:,} ids were sampled; the others were not run."
            )
        if layout["note"]:
            sentences.append(f"{layout['layout']}: {layout['note']}.")
    for name, ranks in found["ranks"].items():
        sentences.append(f"Ids {name} of other than {', '.join(map(str, ranks))} dimension(s): the folded module refuses them.")
    for each in report["decisions"]:
        sentences += _of_decision(each)
    if report["specialised"]:
        sentences.append("Other values of what was fixed at capture (below).")
    if "timing" not in report:
        sentences.append("Whether speed was measured, and how, is in run.json.")
    else:
        sentences.append("Speed was measured." if report["timing"] else "Speed was not measured.")
    return [
        *sentences,
        "Gradients and training mode.",
        "Another version of torch, another device, other kernels or another number of threads: they may round otherwise.",
        "Weights other than those compiled: after a change the tables are stale; ask validity().",
    ]


def _of_decision(decision: Mapping[str, Any]) -> list[str]:
    probe = decision["probe"]
    if probe is None:
        unasked = not decision["token_only"]
        return [f"Near ties of {decision['node']} ({decision['kind']}) were not searched for."] if unasked else []
    sentences = [f"{decision['node']}: {probe['note']}."] if probe["note"] else []
    if "space" in probe and probe["contexts"] < probe["space"]:
        space = f"{probe['space']:,}" if probe["space"] < 10**12 else f"about 1e{len(str(probe['space'])) - 1}"
        known = f"{probe['contexts']:,} of {space} calls were searched"
        sentences.append(f"{decision['node']} decides over context: {known} for near ties.")
    if probe.get("fragile"):
        sentences.append(
            f"{probe['fragile']:,} token(s) of {decision['node']} are so near a tie that another machine may choose otherwise."
        )
    return sentences
