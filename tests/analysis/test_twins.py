"""Proofs and their negative twins: nearly the same computation, where a fold would be wrong.

Of each pair the first must be proved to depend on one token alone, and its rows must bear that out; the second must be
refused for the reason given, and its rows must bear that out too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import foldfx
from foldfx import Example
from foldfx.analysis import analyze_program

VOCABULARY, WIDTH, LIMIT = 7, 16, 1e-5

Compute = Callable[["Model", Tensor, Tensor], Tensor]


class Model(nn.Module):
    """`compute(model, embedded, ids)`, with the layers that twins use."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm, self.across = nn.LayerNorm(WIDTH), nn.LayerNorm(5)
        self.group, self.batch = nn.GroupNorm(4, WIDTH), nn.BatchNorm1d(WIDTH)
        self.single, self.triple = nn.Conv1d(WIDTH, WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.gru, self.grow = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 4 * WIDTH)
        self.bias, self.start = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.square, self.mix = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(5, 5))
        self.places, self.table = nn.Parameter(torch.randn(9, WIDTH)), nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.register_buffer("order", torch.tensor([3, 1, 4, 0, 2]))
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.compute(self, self.embedding(ids), ids)


FREE, FIXED, EVEN, EIGHT, FLAT = ((3, 5), (2, 4), (4, 7)), ((3, 5),), ((3, 4),), ((3, 8),), ((5,), (4,), (7,))


@dataclass(frozen=True)
class Twins:
    """`holds` is token-only; `breaks` depends on `sources`, because of `why`. Sizes are symbols where `shapes` differ."""

    name: str
    holds: Compute
    breaks: Compute
    sources: str
    why: str
    shapes: Sequence[tuple[int, ...]] = FREE

    def __str__(self) -> str:
        return self.name

    def surroundings(self) -> list[Tensor]:
        """Ids in which every token stands in many places, among many others."""
        return [torch.randint(VOCABULARY, shape) for shape in self.shapes * 3]

    def dynamic(self) -> bool | dict[str, list[Any]]:
        return len(self.shapes) > 1 and {"ids": [Dim.AUTO] * len(self.shapes[0])}


CONTEXT, POSITION, WINDOW = "context + token(ids)", "position + token(ids)", "token(ids) + window(3)"
ALONG = "over dimension 1 of embedding, which is [ids[1]]: it would mix the rows of different tokens"


def reduction(name: str, reduce: Callable[[Tensor, int], Tensor]) -> Twins:
    return Twins(name, lambda m, x, i: reduce(x, -1), lambda m, x, i: x + reduce(x, 1).unsqueeze(1), CONTEXT, ALONG)


def scan(name: str, work: Callable[[Tensor, int], Tensor]) -> Twins:
    return Twins(name, lambda m, x, i: work(x, -1), lambda m, x, i: work(x, 1), CONTEXT, ALONG)


TWINS = [
    reduction("sum", lambda x, d: x.sum(d)), reduction("mean", lambda x, d: x.mean(d)),
    reduction("max", lambda x, d: x.max(d).values), reduction("var", lambda x, d: x.var(d)),
    reduction("var_mean of two overloads", lambda x, d: torch.var_mean(x, d, unbiased=False)[0] + torch.var_mean(x, [d])[1]),
    reduction("std_mean", lambda x, d: torch.std_mean(x, d, correction=1)[0]),
    reduction("linalg_norm", lambda x, d: torch.linalg.norm(x, dim=d)), reduction("quantile", lambda x, d: x.quantile(0.3, d)),
    reduction("logsumexp", lambda x, d: x.logsumexp(d)), reduction("argmax", lambda x, d: x.argmax(d)),
    reduction("topk", lambda x, d: x.topk(2, d).values.select(d, 1)), scan("softmax", lambda x, d: x.softmax(d)),
    scan("cumsum", lambda x, d: x.cumsum(d)), scan("sort", lambda x, d: x.sort(d).values),
    scan("flip", lambda x, d: x.flip(d)), scan("roll", lambda x, d: x.roll(1, d)),
    Twins("diff", lambda m, x, i: x.diff(dim=-1), lambda m, x, i: F.pad(x.diff(dim=1), (0, 0, 0, 1)), CONTEXT,
          "aten.diff.default " + ALONG),
    Twins("glu", lambda m, x, i: F.glu(x, -1), lambda m, x, i: F.glu(x, 1).repeat(1, 2, 1), CONTEXT, ALONG, EVEN),
    Twins("times a number, or the length", lambda m, x, i: x * 2.0, lambda m, x, i: x * i.shape[1],
          "length + token(ids)", "aten.mul.Tensor computes with sym_size_int"),
    Twins("plus a bias, or a position table", lambda m, x, i: x + m.bias,
          lambda m, x, i: x + m.places[torch.arange(i.shape[1])],
          POSITION, "aten.arange.default counts positions along an input of symbolic length"),
    Twins("plus a bias, or a static position table", lambda m, x, i: x + m.bias, lambda m, x, i: x + m.places[:5],
          POSITION, "an operand varies (5 values) along token axis ids[1]", FIXED),
    Twins("plus a constant of its type", lambda m, x, i: x + m.bias.type_as(x), lambda m, x, i: x + m.places[:5].type_as(x),
          POSITION, "an operand varies (5 values) along token axis ids[1]", FIXED),
    Twins("times a count", lambda m, x, i: x * torch.ones_like(x).cumsum(-1), lambda m, x, i: x * torch.ones_like(x).cumsum(1),
          CONTEXT, "aten.cumsum.default over dimension 1 of ones_like"),
    Twins("one of it broadcast back", lambda m, x, i: x - x[..., :1], lambda m, x, i: x - x[:, :1],
          POSITION, "slice keeps 1 of [ids[1]]: row t of the result may be the token of another position"),
    Twins("select", lambda m, x, i: x.select(-1, 3), lambda m, x, i: x - x.select(1, 0).unsqueeze(1),
          POSITION, "select takes one index of [ids[1]]: the row of a fixed position"),
    Twins("chunk", lambda m, x, i: torch.cat(x.chunk(2, -1)[::-1], -1), lambda m, x, i: torch.cat(x.chunk(2, 1)[::-1], 1),
          POSITION, "aten.split.Tensor cuts [ids[1]] into ranges of positions", EVEN),
    Twins("split", lambda m, x, i: x.split([4, 12], -1)[1], lambda m, x, i: torch.cat(x.split([1, 4], 1)[::-1], 1),
          POSITION, "aten.split_with_sizes.default cuts [ids[1]] into ranges of positions", FIXED),
    Twins("unbind", lambda m, x, i: x.unbind(-1)[2], lambda m, x, i: torch.stack(x.unbind(1)[::-1], 1),
          POSITION, "unbind takes [ids[1]] apart by position", FIXED),
    Twins("cat", lambda m, x, i: torch.cat([m.start.expand(*i.shape, -1), x], -1),
          lambda m, x, i: torch.cat([m.start.expand(i.shape[0], -1, -1), x], 1)[:, :-1],
          POSITION, "cat along [ids[1]] of embedding shifts positions"),
    Twins("pad", lambda m, x, i: F.pad(x, (1, 0)), lambda m, x, i: F.pad(x, (0, 0, 1, 0))[:, :-1],
          POSITION, "aten.pad.default pads [ids[1]], which moves positions"),
    Twins("pad before, cut behind", lambda m, x, i: x - F.pad(x, (1, -1)), lambda m, x, i: x - F.pad(x, (0, 0, 1, -1)),
          POSITION, "aten.pad.default pads [ids[1]], which moves positions"),
    Twins("repeat", lambda m, x, i: x.repeat(1, 1, 2), lambda m, x, i: x.repeat(1, 2, 1)[:, 2:7],
          POSITION, "slice keeps 5 of [=2·ids[1]]: row t of the result may be the token of another position", FIXED),
    Twins("repeat the axis", lambda m, x, i: x.repeat(1, 2, 1).unflatten(1, (2, -1)).movedim(1, 2),
          lambda m, x, i: (x.repeat(1, 2, 1) - x.repeat_interleave(2, 1)).unflatten(1, (2, -1)).movedim(1, 2),
          "context + length + token(ids)", "[=2·ids[1]] and [ids[1]·=2] do not line up"),
    Twins("tile", lambda m, x, i: x.tile(2, 1, 1).unflatten(0, (2, -1)).movedim(0, 2),
          lambda m, x, i: x.tile(2, 1, 1).unflatten(0, (-1, 2)).select(1, 0),
          CONTEXT, "a view to size 3 cuts through =2 of [=2·ids[0]][ids[1]][16]", FIXED),
    Twins("cat the axis", lambda m, x, i: torch.cat([x, x.sin()], 1).unflatten(1, (2, -1)).movedim(1, 2),
          lambda m, x, i: torch.cat([x, x.sin()], 1).unflatten(1, (2, -1)).flip(2).movedim(1, 2),
          CONTEXT, "aten.flip.default over dimension 2 of view, which is [ids[1]]"),
    Twins("cat copies of the axis",
          lambda m, x, i: torch.cat([x.repeat(1, 2, 1), x.sin()], 1).unflatten(1, (3, -1)).movedim(1, 2),
          lambda m, x, i: torch.cat([x, x.repeat_interleave(2, 1)], 1).unflatten(1, (3, -1)).movedim(1, 2),
          CONTEXT, "a view to size 2 cuts through ids[1] of [ids[1]·=2]", FIXED),
    Twins("cat zeros, or a position table", lambda m, x, i: torch.cat([x, 0 * x], 1).unflatten(1, (2, -1)).movedim(1, 2),
          lambda m, x, i: torch.cat([x, m.places[:5].expand(3, -1, -1)], 1).unflatten(1, (2, -1)).movedim(1, 2),
          POSITION, "an operand varies (5 values) along token axis ids[1]", FIXED),
    Twins("written in place", lambda m, x, i: torch.slice_scatter(x, m.bias[:2].expand(3, 5, 2), -1, 0, 2),
          lambda m, x, i: torch.slice_scatter(x, m.places[:2].expand(3, 2, -1), 1, 0, 2),
          POSITION, "aten.slice_scatter.default writes some positions of [ids[1]]", FIXED),
    Twins("windows", lambda m, x, i: x.unfold(-1, 2, 1), lambda m, x, i: F.pad(x.unfold(1, 2, 1).sum(-1), (0, 0, 0, 1)),
          CONTEXT, "aten.unfold.default over dimension 1 of embedding", FIXED),
    Twins("a quarter turn", lambda m, x, i: x.unflatten(-1, (4, 4)).rot90(1, (2, 3)), lambda m, x, i: x.rot90(1, (1, 2)),
          CONTEXT, "aten.rot90.default over dimension 1 of embedding", FIXED),
    Twins("convolution", lambda m, x, i: m.single(x.mT).mT, lambda m, x, i: m.triple(x.mT).mT,
          WINDOW, "aten.conv1d.default with kernel 3 slides over [ids[1]]: each result sees a window of 3 ids"),
    Twins("max_pool", lambda m, x, i: F.max_pool1d(x, 2), lambda m, x, i: F.max_pool1d(x.mT, 3, 1, 1).mT,
          WINDOW, "aten.max_pool1d.default with kernel 3 slides over [ids[1]]"),
    Twins("interpolate", lambda m, x, i: F.interpolate(x, scale_factor=2),
          lambda m, x, i: F.interpolate(x.mT, scale_factor=2)[..., :5].mT,
          CONTEXT, "aten.upsample_nearest1d.vec over dimension 2 of transpose", FIXED),
    Twins("adaptive_avg_pool", lambda m, x, i: F.adaptive_avg_pool1d(x, 4),
          lambda m, x, i: x + F.adaptive_avg_pool1d(x.mT, 1).mT,
          CONTEXT, "aten.adaptive_avg_pool1d.default over dimension 2 of transpose", FIXED),
    Twins("layer_norm behind transposes", lambda m, x, i: m.norm(x.mT.mT), lambda m, x, i: m.across(x.mT).mT,
          CONTEXT, "aten.layer_norm.default over dimension 2 of transpose, which is [ids[1]]", FIXED),
    Twins("layer_norm behind views", lambda m, x, i: m.norm(F.gelu(x.view(3, 2, 64)).view(3, 2, 4, 16)).view(3, 8, 16),
          lambda m, x, i: F.layer_norm(F.gelu(x.view(3, 2, 64)), (64,)).view(3, 8, 16),
          CONTEXT, "aten.layer_norm.default over dimension 2 of gelu, which is [4 of ids[1] in steps of 1·16]", EIGHT),
    Twins("instance_norm", lambda m, x, i: F.instance_norm(x.unflatten(-1, (4, 4))),
          lambda m, x, i: F.instance_norm(x.mT).mT, CONTEXT, "aten.instance_norm.default over dimension 2 of transpose"),
    Twins("instance_norm with statistics given",
          lambda m, x, i: F.instance_norm(x.mT, m.bias, m.bias**2, use_input_stats=False).mT,
          lambda m, x, i: F.instance_norm(x, m.places[:5, 0], m.places[:5, 1] ** 2, use_input_stats=False),
          POSITION, "an operand varies (5 values) along token axis ids[1]", FIXED),
    Twins("rms_norm", lambda m, x, i: F.rms_norm(x, (WIDTH,)), lambda m, x, i: F.rms_norm(x.mT, (5,)).mT,
          CONTEXT, "aten.rms_norm.default over dimension 2 of transpose", FIXED),
    Twins("group_norm", lambda m, x, i: m.group(x.reshape(-1, WIDTH)).reshape(x.shape), lambda m, x, i: m.group(x.mT).mT,
          CONTEXT, "aten.group_norm.default over dimension 2 of transpose"),
    Twins("batch_norm", lambda m, x, i: m.batch(x.mT).mT, lambda m, x, i: F.batch_norm(x.mT, None, None, training=True).mT,
          CONTEXT, "takes its statistics over"),
    Twins("rows of a merged view", lambda m, x, i: m.grow(x.reshape(-1, WIDTH)).reshape(*i.shape, -1),
          lambda m, x, i: x.reshape(-1, WIDTH).cumsum(0).reshape(x.shape),
          "context + length + token(ids)", "aten.cumsum.default over dimension 0 of view, which is [ids[0]·ids[1]]"),
    Twins("outer product", lambda m, x, i: x[:, :, None] * x[:, None, :], lambda m, x, i: (x[:, None] * x[None]).amax(1),
          CONTEXT, "token axis ids[0] occurs twice in [ids[0]][ids[0]][16]: two tokens in one value", FLAT),
    Twins("products of rows", lambda m, x, i: x.unflatten(-1, (4, 4)) @ x.unflatten(-1, (4, 4)).mT,
          lambda m, x, i: (x @ x.mT) @ x, CONTEXT, "token axis ids[1] occurs twice"),
    Twins("attention", lambda m, x, i: (x @ m.square).softmax(-1), lambda m, x, i: F.scaled_dot_product_attention(x, x, x),
          CONTEXT, "attention mixes the rows of all tokens"),
    Twins("matrix on the left", lambda m, x, i: (m.square @ x.mT).mT, lambda m, x, i: m.mix @ x,
          CONTEXT, "a product sums over [ids[1]] of embedding: it would mix the rows of different tokens", FIXED),
    Twins("triangle of ones", lambda m, x, i: x @ torch.ones(WIDTH, WIDTH).tril(),
          lambda m, x, i: torch.ones(i.shape[1], i.shape[1]).tril() @ x, CONTEXT, "aten.tril.default over dimension 0 of ones"),
    Twins("one_hot", lambda m, x, i: x + F.one_hot(i, VOCABULARY).float() @ m.table,
          lambda m, x, i: x + (F.one_hot(i, VOCABULARY).float().mT @ x).sum(1, keepdim=True),
          CONTEXT, "a product sums over [ids[1]]"),
    Twins("einsum", lambda m, x, i: torch.einsum("bth,ho->bto", x, m.square),
          lambda m, x, i: torch.einsum("bth,bsh->bts", x, x).sum(-1), CONTEXT, "token axis ids[1] occurs twice"),
    Twins("einsum of what is not named", lambda m, x, i: torch.einsum("...h,ho->...o", x, m.square),
          lambda m, x, i: torch.einsum("...t,st->...s", x.mT, m.mix).mT,
          CONTEXT, "a product sums over [ids[1]] of transpose", FIXED),
    Twins("tensordot", lambda m, x, i: torch.tensordot(x, m.square, ([-1], [1])),
          lambda m, x, i: torch.tensordot(x, m.mix, ([1], [1])).mT,
          CONTEXT, "a product sums over [ids[1]] of embedding", FIXED),
    Twins("kron", lambda m, x, i: torch.kron(x, m.bias),
          lambda m, x, i: torch.kron(x, x[:, :, :1].contiguous()).unflatten(1, (5, 5)).sum(2),
          CONTEXT, "token axis ids[0] occurs twice in [ids[0]·ids[0]][ids[1]·ids[1]][16]", FIXED),
    Twins("distances", lambda m, x, i: torch.cdist(x, m.table), lambda m, x, i: torch.cdist(x, x).sum(-1),
          CONTEXT, "token axis ids[1] occurs twice"),
    Twins("cosine_similarity", lambda m, x, i: F.cosine_similarity(x, m.bias, dim=-1),
          lambda m, x, i: x * F.cosine_similarity(x, m.bias, dim=1)[:, None], CONTEXT, ALONG),
    Twins("outer", lambda m, x, i: torch.outer(x[:, 0], m.bias),
          lambda m, x, i: torch.outer(x[:, 0], x[:, 0]).sum(-1), CONTEXT, "token axis ids[0] occurs twice", FLAT),
    Twins("index", lambda m, x, i: x + m.table[i], lambda m, x, i: x[:, m.order],
          CONTEXT, "indexing over dimension 1 of embedding", FIXED),
    Twins("index_select", lambda m, x, i: m.table.index_select(0, i.flatten()).view(x.shape),
          lambda m, x, i: x.index_select(1, m.order), CONTEXT, "index_select over dimension 1 of embedding", FIXED),
    Twins("gather", lambda m, x, i: x + m.table.gather(0, i.reshape(-1, 1).expand(-1, WIDTH)).view(x.shape),
          lambda m, x, i: x.gather(1, m.order[:, None].expand(*i.shape, WIDTH)),
          CONTEXT, "gather over dimension 1 of embedding", FIXED),
    Twins("scatter", lambda m, x, i: x.scatter(-1, x.argsort(-1)[..., :1], 0.5),
          lambda m, x, i: x.scatter(1, m.order[:1, None].expand(3, 1, WIDTH), 9.0),
          CONTEXT, "aten.scatter.value over dimension 1 of embedding", FIXED),
    Twins("scatter in each row, or in the first",
          lambda m, x, i: x + torch.zeros(3, 5, 4).scatter(-1, torch.zeros(3, 5, 1).long(), 9.0).sum(-1, True),
          lambda m, x, i: x + torch.zeros(3, 5, 4).scatter(-1, torch.zeros(3, 1, 1).long(), 9.0).sum(-1, True),
          POSITION, "an operand varies (5 values) along token axis ids[1]", FIXED),
    Twins("index_add", lambda m, x, i: x.index_add(-1, m.order[:2], x[..., 4:6]),
          lambda m, x, i: x.index_add(1, m.order[:1], 9 + m.places[:1].expand(3, -1, -1)),
          CONTEXT, "aten.index_add.default over dimension 1 of embedding", FIXED),
    Twins("index_add of a position table", lambda m, x, i: x.index_add(-1, m.order[:2], m.bias[:2].expand(*i.shape, -1)),
          lambda m, x, i: x.index_add(-1, m.order[:2], m.places[:5, :2].expand(3, -1, -1)),
          POSITION, "an operand varies (5 values) along token axis ids[1]", FIXED),
    Twins("searchsorted", lambda m, x, i: torch.searchsorted(m.bias.sort()[0], x),
          lambda m, x, i: torch.searchsorted(m.places[:5].sort(-1)[0].expand(3, -1, -1), x),
          CONTEXT, "among boundaries of their own for each row", FIXED),
    Twins("among constants, or among all values", lambda m, x, i: torch.isin(i, m.order[:3])[..., None] * x,
          lambda m, x, i: torch.isin(i, i + 1)[..., None] * x, CONTEXT, "reads what it looks among"),
    Twins("another name of an elementwise operation", lambda m, x, i: x.less_equal(m.bias),
          lambda m, x, i: x.less_equal(m.places[:5]), POSITION, "an operand varies (5 values) along token axis ids[1]", FIXED),
    Twins("where", lambda m, x, i: torch.where(m.bias > 0, x, 0.0),
          lambda m, x, i: torch.where((torch.arange(i.shape[1]) % 2 == 0)[:, None], x, 0.0),
          POSITION, "aten.arange.default counts positions"),
    Twins("linear or recurrent", lambda m, x, i: m.grow(x).tanh(), lambda m, x, i: m.gru(x)[0],
          CONTEXT, "aten.gru.input carries a state from token to token"),
    Twins("dropout", lambda m, x, i: F.dropout(x, 0.5, training=False), lambda m, x, i: F.dropout(x, 0.5, training=True),
          CONTEXT, "in training mode is random"),
    Twins("times numbers", lambda m, x, i: x * torch.full_like(x, 0.5), lambda m, x, i: x * torch.rand_like(x),
          CONTEXT, "aten.rand_like.default is random: never folded"),
]  # fmt: skip


def explanation(compute: Compute, ids: Tensor, dynamic: Any) -> str:
    facts = foldfx.analyze(Model(compute), (ids,), dynamic=dynamic)
    (output,) = next(node for node in facts if node.op == "output").all_input_nodes
    return facts.explain(output)


def distances(compute: Compute, surroundings: Sequence[Tensor]) -> tuple[float, float]:
    """Max-abs and relative L2 between the original model's rows for equal tokens, whatever surrounds them."""
    model = Model(compute)
    with torch.no_grad():
        rows = torch.cat([model(ids).reshape(ids.numel(), -1) for ids in surroundings]).double()
    tokens = torch.cat([ids.flatten() for ids in surroundings])
    table = rows.new_zeros(VOCABULARY, rows.shape[1])
    table[tokens] = rows
    error = rows - table[tokens]
    return error.abs().max().item(), (error.norm() / rows.norm()).item()


@pytest.mark.parametrize("twins", TWINS, ids=str)
def test_the_first_is_proved_and_its_rows_depend_on_the_token_alone(twins: Twins) -> None:
    surroundings = twins.surroundings()
    text = explanation(twins.holds, surroundings[0], twins.dynamic())
    assert text.partition(", laid out")[0].endswith(" depends on: token(ids)"), text
    worst, relative = distances(twins.holds, surroundings)
    assert worst <= LIMIT
    assert relative <= LIMIT


@pytest.mark.parametrize("twins", TWINS, ids=str)
def test_the_second_is_refused_for_its_reason_and_its_rows_depend_on_more(twins: Twins) -> None:
    surroundings = twins.surroundings()
    text = explanation(twins.breaks, surroundings[0], twins.dynamic())
    assert text.splitlines()[0].endswith(f" depends on: {twins.sources}"), text
    assert twins.why in text.splitlines()[-1]
    worst, relative = distances(twins.breaks, surroundings)
    assert worst > 1e3 * LIMIT
    assert relative > 1e3 * LIMIT


NEVER: dict[str, Compute] = {
    "rand": lambda m, x, i: x + torch.rand(WIDTH),
    "randint": lambda m, x, i: x + torch.randint(3, (WIDTH,)),
    "randperm": lambda m, x, i: x + torch.randperm(WIDTH),
    "normal": lambda m, x, i: x + torch.normal(m.bias, 1.0),
    "normal in place": lambda m, x, i: x + torch.zeros(WIDTH).normal_(),
    "bernoulli": lambda m, x, i: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda m, x, i: torch.multinomial(x.softmax(-1).reshape(-1, WIDTH), 2),
    "alpha_dropout": lambda m, x, i: F.alpha_dropout(x, 0.5, training=True),
    "feature_alpha_dropout": lambda m, x, i: F.feature_alpha_dropout(x, 0.5, training=True),
    "rrelu": lambda m, x, i: F.rrelu(x, training=True),
    "gumbel_softmax": lambda m, x, i: F.gumbel_softmax(x),
    "empty": lambda m, x, i: x + torch.empty(WIDTH),
    "empty_like": lambda m, x, i: x + torch.empty_like(x),
    "new_empty": lambda m, x, i: x + x.new_empty(WIDTH),
    "empty_strided": lambda m, x, i: x + torch.empty_strided((WIDTH,), (2,)),
    "empty_permuted": lambda m, x, i: x + torch.empty_permuted((WIDTH,), (0,)),
}


@pytest.mark.parametrize("name", NEVER)
def test_random_numbers_and_uninitialised_memory_are_never_constant(name: str) -> None:
    text = explanation(NEVER[name], torch.randint(VOCABULARY, (3, 5)), False)
    assert text.splitlines()[0].endswith(f" depends on: {CONTEXT}"), text
    whys = ("is uninitialised memory", "no rule for aten.empty_") if "empty" in name else ("is random",)
    assert any(why in text.splitlines()[-1] for why in whys)


@pytest.mark.parametrize(("most", "length"), [(3, 3), (9, 6)])
def test_a_length_that_the_trace_took_to_be_a_number_is_no_defect_of_a_rule(most: int, length: int) -> None:
    """Half of 2 or 3 is 1, so the trace forgets the symbol after the operation that makes it; half of 2 to 9 stays one."""
    halves = Model(lambda m, x, i: x.new_ones(x.shape[1] // 2, 1) * 2)
    dynamic = {"ids": [Dim.AUTO, Dim("n", min=length // 2 + 1, max=most)]}
    facts = analyze_program(foldfx.capture(halves, (torch.randint(VOCABULARY, (2, length)),), dynamic=dynamic))
    (text,) = [fact.because.text for node, fact in facts.items() if node.target is torch.ops.aten.mul.Tensor]
    assert "please report" not in text
    assert ("the trace took" in text) is (most == 3)


FOLDED = ["softmax", "cumsum", "times a number, or the length", "plus a bias, or a position table", "pad before, cut behind",
          "convolution", "layer_norm behind transposes", "layer_norm behind views", "group_norm"]  # fmt: skip


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("twins", [twins for twins in TWINS if twins.name in FOLDED], ids=str)
def test_a_linear_behind_the_first_is_folded_and_one_behind_the_second_stays(twins: Twins, holds: bool) -> None:
    compute = twins.holds if holds else twins.breaks
    model = Model(lambda m, x, i: m.grow(compute(m, x, i)))
    first, *others = twins.surroundings()
    result = foldfx.compile(model, [Example((first,))], dynamic=twins.dynamic())
    tables = [table for rewrite in result.report.data["rewrites"] for table in rewrite["tables"]]
    assert result.accepted is ("linear" in [value["name"] for table in tables for value in table["values"]]) is holds
    for ids in others:
        with torch.no_grad():
            expected, found = model(ids).double(), result.module(ids).double()
        assert (found - expected).abs().max() <= LIMIT
        assert (found - expected).norm() <= LIMIT * expected.norm()


class Pair(nn.Module):
    """A linear behind a value of one token input, or of two."""

    def __init__(self, joins: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.joins = joins
        self.first, self.second = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.grow = nn.Linear(WIDTH, 4 * WIDTH)
        self.eval()

    def forward(self, ids: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        second = self.second(others)
        return self.grow(self.joins(self.first(ids), second)), second


@pytest.mark.parametrize(
    ("joins", "tokens", "folds"),
    [
        (lambda one, other: one * 2, ("ids",), True),
        (lambda one, other: one + other, ("ids", "others"), False),
        (lambda one, other: one + torch.zeros_like(other), ("ids",), False),
    ],
    ids=["one token", "two tokens", "one token, in the shape of the other input"],
)
def test_only_a_value_of_one_token_is_its_row(
    joins: Callable[[Tensor, Tensor], Tensor], tokens: tuple[str, ...], folds: bool
) -> None:
    """A row for each pair of tokens would not pay; a size of another input is not in reach of a table's rows."""
    model, call = Pair(joins), (torch.randint(VOCABULARY, (3, 5)), torch.randint(VOCABULARY, (3, 5)))
    facts = foldfx.analyze(model, call, dynamic=False)
    assert facts[facts.node("linear")].tokens == tokens
    result = foldfx.compile(model, [Example(call)], dynamic=False)
    assert result.accepted is folds
    assert "is not callable" not in str(result.report)
    for found, expected in zip(result.module(*call), model(*call), strict=True):
        assert (found - expected).abs().max() <= LIMIT
        assert (found - expected).norm() <= LIMIT * expected.norm()


@pytest.mark.parametrize(("dim", "alone"), [(-1, True), (1, False)])
def test_std_mean_of_the_overload_that_export_cannot_trace(dim: int, alone: bool) -> None:
    """A graph that holds `std_mean.dim` all the same is judged like one with its sibling."""
    model = Model(lambda m, x, i: torch.std_mean(x, dim, correction=1)[0])
    program = foldfx.capture(model, (torch.randint(VOCABULARY, (3, 5)),), dynamic=False)
    (node,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.std_mean.correction)
    node.target, node.args, node.kwargs = torch.ops.aten.std_mean.dim, (node.args[0], [dim]), {}
    assert analyze_program(program)[node].token_only is alone
