"""The audited router at full size: what finding its near ties costs, and every gene at every class and expression.

    python benchmarks/audited_router.py > benchmarks/results/audited_router.txt

For every one of 60,607 genes, in calls of the row counts that built each execution class, at 10 expression values, the
outputs, the chosen experts and the load-balance loss of model and folded model are compared bit by bit.
"""

from __future__ import annotations

import time

import torch
from machine import describe

import foldfx
from foldfx.examples.audited_router import GENES, examples, planted

EXPRESSION = (0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 100.0)
LARGE = 1031


def main() -> None:
    print(describe())
    model, near = planted(GENES, 20, seed=0)
    for objective in ("storage", "routes"):
        began = time.perf_counter()
        result = foldfx.compile(model, examples(), objective=objective, observables=["load_balance_loss"])
        print(f"objective {objective}: {result.status}, compiled in {time.perf_counter() - began:.1f} s")
    probe = result.report.to_dict()["decisions"][0]["probe"]
    print(f"planted {near}")
    for flip in probe["flips"]:
        where = f"{len(flip['counts'])} row counts from {flip['counts'][0]} on"
        print(f"  gene {flip['token']}, margin {flip['margin']:.1e}, otherwise at {where}: error {flip['error']:.3f}")
    (routes,) = result.routes().routes
    print(f"rule: {routes.rule}; experts {list(routes.experts.shape)} {routes.experts.dtype}")
    for number, built in enumerate(result.report.to_dict()["rewrites"][0]["classes"][0]["tables"]):
        compare(model, result.module, built["rows"] or LARGE, routes.experts[number])


def compare(model: torch.nn.Module, module: torch.nn.Module, count: int, experts: torch.Tensor) -> None:
    """Every gene in calls of `count` rows: how many calls differ in any bit, and how many genes choose other experts."""
    calls = different = flips = 0
    for part in torch.arange(GENES).split(count):
        genes = torch.cat([part, torch.arange(count - part.numel())])[None]
        flips += int((model.choose(genes)[0, : part.numel()] != experts[:, part].t()).any(1).sum())
        for value in EXPRESSION:
            expression = torch.full(genes.shape, value)
            same = torch.equal(model(genes, expression), module(genes, expression))
            different += not (same and torch.equal(model.load_balance_loss, module.load_balance_loss))
            calls += 1
    print(f"calls of {count} rows: {calls:,} compared, {different} differ; of {GENES:,} genes {flips} choose other experts")


if __name__ == "__main__":
    with torch.no_grad():
        main()
