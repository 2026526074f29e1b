"""The audited case at its full size: near ties nobody points out are found, and tables by class choose as the model does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import foldfx
from foldfx.examples.audited_router import CHOSEN, EXPERTS, GENES, WEIGHTS, Embedder, examples, planted

PLANTED = 20
SECONDS = 60
"""What finding every flip may take on two idle cores; measured in seconds of processor time, which others do not lengthen."""

EXPRESSION = [0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 100.0]


@pytest.fixture(scope="module")
def case() -> tuple[Embedder, list[int]]:
    return planted(GENES, PLANTED, seed=0)


def compiled(model: Embedder, objective: Any) -> tuple[foldfx.Result, float]:
    began = time.process_time()
    result = foldfx.compile(model, examples(), objective=objective, observables=["load_balance_loss"])
    return result, time.process_time() - began


@pytest.fixture(scope="module")
def storage(case: tuple[Embedder, list[int]]) -> tuple[foldfx.Result, float]:
    return compiled(case[0], "storage")


@pytest.fixture(scope="module")
def routes(case: tuple[Embedder, list[int]]) -> tuple[foldfx.Result, float]:
    return compiled(case[0], "routes")


def probe(result: foldfx.Result) -> dict[str, Any]:
    (decision,) = result.report.to_dict()["decisions"]
    return dict(decision["probe"])


def in_calls(rows: Tensor, count: int) -> Iterator[Tensor]:
    """Ids [1, count] that ask for all `rows`, the last ones filled up with the first."""
    for part in rows.split(count):
        yield torch.cat([part, rows[: count - part.numel()]])[None]


def choices(model: Embedder, rows: Tensor, count: int) -> Tensor:
    return torch.cat([model.choose(ids)[0] for ids in in_calls(rows, count)])[: rows.numel()]


def test_storage_refuses_for_the_values_it_would_add(storage: tuple[foldfx.Result, float]) -> None:
    result, _ = storage
    assert result.status == "unchanged"
    (refused,) = [each for each in result.report.to_dict()["outcomes"] if each["status"] == "refused"]
    figures = refused["figures"]
    assert GENES * EXPERTS - WEIGHTS == 338_806
    for kind in ("logical", "backing"):
        assert figures[f"nearest_{kind}"] - figures[f"{kind}_before"] == 4 * 338_806
    assert "nearest to it: tables of linear_1 = 2,424,280 B, which free hidden.weight, score.weight" in refused["reason"]


def test_every_gene_that_flips_is_found_with_its_error_though_logits_agree(
    case: tuple[Embedder, list[int]], storage: tuple[foldfx.Result, float]
) -> None:
    model, ids = case
    result, seconds = storage
    assert seconds < SECONDS
    found = {flip["token"]: flip for flip in probe(result)["flips"]}
    everyone = torch.arange(GENES)
    bulk = choices(model, everyone, 1031)
    alone = (choices(model, everyone, 1) != bulk).any(1).nonzero().reshape(-1).tolist()
    assert {token for token, flip in found.items() if 1 in flip["counts"]} == set(alone)
    for token in ids:
        others = [
            count
            for count in (1, 2, 3, 5, 8, 15, 16, 17, 33, 64)
            if not torch.equal(model.choose(torch.full((1, count), token))[0], bulk[token].expand(count, -1))
        ]
        assert set(others) <= set(found[token]["counts"] if token in found else [])
    assert len(set(found) & set(ids)) >= 5
    scores = model.scores(model.genes(everyone[:2048]))
    single = torch.cat([model.scores(model.genes(ids)) for ids in everyone[:2048, None]])
    assert float((scores - single).abs().max()) < 1e-5
    turned = [flip for flip in found.values() if not flip["order_only"]]
    assert all(flip["error"] > 1e-2 for flip in turned)


def test_one_table_is_rejected_and_tables_by_class_choose_as_the_model_does_for_every_gene(
    case: tuple[Embedder, list[int]], routes: tuple[foldfx.Result, float]
) -> None:
    model, _ = case
    result, seconds = routes
    assert result.accepted, result.report
    print(f"compiled in {seconds:.1f} s of processor time")
    (rejected,) = [each for each in result.report.to_dict()["outcomes"] if each["status"] == "rejected"]
    assert "values differ" in rejected["reason"]
    (applied,) = [each for each in result.report.to_dict()["outcomes"] if each["status"] == "applied"]
    assert "accepted for reproducible routes" in applied["reason"]
    (held,) = result.routes().routes
    assert held.experts.dtype is torch.uint8
    assert held.experts.shape[1:] == (CHOSEN, GENES)
    everyone = torch.arange(GENES)
    for number, built in enumerate(result.report.to_dict()["rewrites"][0]["classes"][0]["tables"]):
        count = built["rows"] or 1031
        assert built["positions"] in ([], list(range(count))), "at one thread classes go by row count alone"
        assert torch.equal(choices(model, everyone, count), held.experts[number].t().long())
    assert set(held.fragile.tolist()) >= {flip["token"] for flip in probe(result)["flips"] if not flip["order_only"]}


def test_outputs_and_the_attribute_are_those_of_the_model_at_every_expression(
    case: tuple[Embedder, list[int]], routes: tuple[foldfx.Result, float]
) -> None:
    """Planted genes and others alone and in twos, and every gene in large calls."""
    model, ids = case
    module = routes[0].module
    some = torch.cat([torch.tensor(ids), torch.randint(GENES, (100,))])
    calls = [*in_calls(some, 1), *in_calls(some, 2), *in_calls(torch.arange(GENES), 4099)]
    for genes in calls:
        for value in EXPRESSION:
            expression = torch.full(genes.shape, value)
            assert torch.equal(model(genes, expression), module(genes, expression))
            assert torch.equal(model.load_balance_loss, module.load_balance_loss)
