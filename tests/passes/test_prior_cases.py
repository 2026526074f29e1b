"""Three published cases of token tables, with their shapes and random weights; every figure is computed from shapes.

A 12-layer Llama over 84 tokens; a router over 60,607 genes whose embedding has another reader; and protein rows of
19,790 genes through a projection, every gene checked in bulk and as many alone as ten seconds allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldfx

FLOAT = 4
Agree = Callable[..., None]


def state_values(module: nn.Module) -> int:
    """Numbers the state dict holds; `module` shares none of them between names."""
    return sum(tensor.numel() for tensor in module.state_dict().values())


def fold(model: nn.Module, args: tuple[Tensor, ...], agree: Agree, **options: Any) -> foldfx.Result:
    """Compile, compare complete outputs on another draw of tokens, and check the stated bytes against the state."""
    result = foldfx.compile(model, [foldfx.Example(args)], **options)
    others = args[0][torch.randperm(len(args[0]))].flip(-1), *args[1:]
    with torch.no_grad():
        agree(model(*others), result.module(*others), max_abs=1e-5, relative_l2=1e-5)
    stated = result.report.to_dict()["storage"]
    assert [stated[when]["logical"] for when in ("before", "after")] == [
        FLOAT * state_values(m) for m in (model, result.module)
    ]
    return result


class Attention(nn.Module):
    """One layer: RMS norm, rotated attention over 8 heads, RMS norm, gated MLP."""

    def __init__(self, width: int, inner: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        h = self.mlp_norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def rotated(x: Tensor) -> Tensor:
    """Rotary positions: pairs of features turn with the place in the sequence."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 10_000 ** (-torch.arange(half) / half)
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()], -1)


class Llama(nn.Module):
    def __init__(self, vocabulary: int, width: int, inner: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, width), nn.RMSNorm(width, eps=1e-6)
        self.layers = nn.Sequential(*(Attention(width, inner) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else nn.init.ones_(parameter)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.embedding(ids))))


def llama_values(vocabulary: int, width: int, inner: int, layers: int) -> int:
    return 2 * vocabulary * width + layers * (4 * width**2 + 3 * width * inner + 2 * width) + width


def test_a_llama_of_12_layers_over_84_tokens(agree: Agree) -> None:
    """Queries, keys and values of the first layer become tables. The residual keeps the embedding, the norm goes."""
    vocabulary, width, shape = 84, 512, (84, 512, 1024, 12)
    before = llama_values(*shape)
    after = before - 3 * width**2 - width + 3 * vocabulary * width
    assert (before, after) == (31_556_096, 30_898_176)
    model = Llama(*shape)
    assert state_values(model) == before
    result = fold(model, (torch.randint(vocabulary, (2, 6)),), agree, dynamic=False)
    assert result.accepted
    assert state_values(result.module) <= after
    gone = {f"layers.0.{name}.weight" for name in ("norm", "q", "k", "v")}
    assert model.state_dict().keys() - result.module.state_dict().keys() == gone


@pytest.mark.parametrize("vocabulary", [64, 65])
def test_a_smaller_llama_over_as_many_tokens_as_pay_and_one_more(vocabulary: int, agree: Agree) -> None:
    """3·d² + d values against 3·V·d: up to V = d, whatever the rest."""
    width = 64
    model = Llama(vocabulary, width, 96, 1)
    freed, tables = 3 * width**2 + width, 3 * vocabulary * width
    result = fold(model, (torch.randint(vocabulary, (2, 6)),), agree, dynamic=False)
    assert result.accepted is (tables < freed)
    assert state_values(result.module) == state_values(model) - max(freed - tables, 0)


class Router(nn.Module):
    """Scores of ten experts for each gene; the gene's own row goes on to the experts, scaled by its expression."""

    def __init__(self, genes: int, width: int = 512, experts: int = 10) -> None:
        super().__init__()
        self.genes = nn.Embedding(genes, width)
        self.router = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, experts, bias=False))
        self.eval()

    def forward(self, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.genes(ids)
        return rows * values[..., None], self.router(rows) + values[..., None]


GENES, WEIGHTS = 60_607, 512 * 512 + 512 * 10


@pytest.fixture(scope="module")
def omni() -> Router:
    return Router(GENES)


def cells(genes: int) -> tuple[Tensor, Tensor]:
    return torch.randint(genes, (2, 6)), torch.randn(2, 6)


def test_a_router_over_60607_genes_would_grow_the_model(omni: Router, agree: Agree) -> None:
    growth = GENES * 10 - WEIGHTS
    assert growth == 338_806
    result = fold(omni, cells(GENES), agree)
    assert (result.status, state_values(result.module)) == ("unchanged", state_values(omni))
    (outcome,) = result.report.to_dict()["outcomes"]
    figures = outcome["figures"]
    assert outcome["status"] == "refused"
    assert figures["logical_after"] - figures["logical_before"] == FLOAT * growth
    assert figures["backing_after"] - figures["backing_before"] == FLOAT * growth
    assert (figures["bytes_before"], figures["bytes_after"]) == (FLOAT * WEIGHTS, FLOAT * GENES * 10)
    assert f"{FLOAT * GENES * 10:,} B" in outcome["reason"]


def test_a_budget_below_the_router_s_table_is_kept(omni: Router, agree: Agree) -> None:
    budget = 1 << 20
    assert budget < FLOAT * GENES * 10 < 4 << 20
    result = fold(omni, cells(GENES), agree, objective="latency", max_table_bytes=budget)
    assert (result.status, state_values(result.module)) == ("unchanged", state_values(omni))
    assert f"the budget is {budget:,} B; {WEIGHTS:,} multiply-adds" in result.report.to_dict()["outcomes"][0]["reason"]


def test_a_router_that_grows_the_model_is_folded_for_its_speed(omni: Router, agree: Agree) -> None:
    result = fold(omni, cells(GENES), agree, objective="latency", max_table_bytes=4 << 20)
    assert (result.status, WEIGHTS) == ("accepted", 267_264)
    assert state_values(result.module) - state_values(omni) == GENES * 10 - WEIGHTS
    assert (
        f"{WEIGHTS:,} multiply-adds a token become a gather of 10 elements" in result.report.to_dict()["outcomes"][0]["reason"]
    )
    timing = result.report.to_dict()["timing"]
    assert timing["after"] < timing["before"]


class Encoder(nn.Sequential):
    """Rows of a protein model, projected, normalised and gated."""

    def __init__(self, genes: int, protein: int = 5120, width: int = 1024) -> None:
        super().__init__(nn.Embedding(genes, protein), nn.Linear(protein, width), nn.LayerNorm(width), nn.SiLU())
        nn.init.normal_(self[2].weight)
        nn.init.normal_(self[2].bias)
        self.eval()


def encoder_values(genes: int) -> tuple[int, int]:
    return genes * 5120 + 5120 * 1024 + 3 * 1024, genes * 1024


def test_projected_protein_rows_leave_a_table_alone(agree: Agree) -> None:
    """Over 19,790 genes; nothing of the source stays."""
    genes = 19_790
    assert encoder_values(genes) == (106_570_752, 20_264_960)
    model = Encoder(genes)
    assert state_values(model) == encoder_values(genes)[0]
    result = fold(model, (torch.randint(genes, (3, 7)),), agree, time_budget=10.0)
    assert result.accepted
    assert state_values(result.module) == encoder_values(genes)[1]
    assert not model.state_dict().keys() & result.module.state_dict().keys()
