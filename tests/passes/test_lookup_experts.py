"""Mixture of lookup experts: experts over the token's embedding become tables, however they are summed; the gate stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foldfx
from foldfx.analysis.provenance import module_path

VOCABULARY, WIDTH, INNER, EXPERTS = 40, 16, 48, 4
SHAPES = ((3, 5), (2, 2))


class Expert(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


Sum = Callable[["Block", Tensor, Tensor], Tensor]
"""The block, what its experts read and the gate [B, T, experts] → the weighted sum of their answers."""


class Block(nn.Module):
    """A shared expert over the hidden state, and lookup experts; all are active, weighed by a router over the hidden state.

    Args:
        mix: how the experts are summed.
        reads: what they read, of the normed embedding and the normed hidden state; MoLE: the embedding alone.
    """

    def __init__(
        self, mix: Sum, reads: Callable[[Tensor, Tensor], Tensor] = lambda rows, x: rows, vocabulary: int = VOCABULARY
    ) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, WIDTH), nn.RMSNorm(WIDTH)
        self.experts = nn.ModuleList([Expert() for _ in range(EXPERTS)])
        self.shared, self.router, self.input_norm = Expert(), nn.Linear(WIDTH, EXPERTS, bias=False), nn.LayerNorm(WIDTH)
        self.mix, self.reads = mix, reads
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        x = self.input_norm(hidden)
        gate = self.router(x).softmax(-1)
        answer: Tensor = hidden + self.shared(x) + self.mix(self, self.reads(self.norm(self.embedding(ids)), x), gate)
        return answer


class Batched(Block):
    """All experts in three tensors."""

    def __init__(self, mix: Sum) -> None:
        super().__init__(mix)
        del self.experts
        self.gates, self.ups = (nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / 4) for _ in range(2))
        self.downs = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) / 7)


def answers(block: Block, read: Tensor) -> list[Tensor]:
    return [expert(read) for expert in block.experts]


def loop(block: Block, read: Tensor, gate: Tensor) -> Tensor:
    total = torch.zeros_like(gate[..., :1])
    for place, answer in enumerate(answers(block, read)):
        total = total + gate[..., place : place + 1] * answer
    return total


def in_place(block: Block, read: Tensor, gate: Tensor) -> Tensor:
    total = torch.zeros(*gate.shape[:-1], WIDTH)
    for place, answer in enumerate(answers(block, read)):
        total += gate[..., place, None] * answer
    return total


def stacked_einsum(block: Block, read: Tensor, gate: Tensor) -> Tensor:
    return torch.einsum("nbtd,btn->btd", torch.stack(answers(block, read)), gate)


def stacked_matmul(block: Block, read: Tensor, gate: Tensor) -> Tensor:
    return (gate.unsqueeze(-2) @ torch.stack(answers(block, read), -2)).squeeze(-2)


def stacked_sum(block: Block, read: Tensor, gate: Tensor) -> Tensor:
    return (gate.unsqueeze(-2) * torch.stack(answers(block, read), -1)).sum(-1)


def flat_bmm(block: Block, read: Tensor, gate: Tensor) -> Tensor:
    stacked = torch.stack(answers(block, read.reshape(-1, WIDTH)), 1)
    return torch.bmm(gate.reshape(-1, 1, EXPERTS), stacked).reshape(read.shape)


def concatenated(block: Block, read: Tensor, gate: Tensor) -> Tensor:
    together = torch.cat(answers(block, read), -1).unflatten(-1, (EXPERTS, WIDTH))
    return (gate.unsqueeze(-1) * together).sum(-2)


def batched_einsum(block: Any, read: Tensor, gate: Tensor) -> Tensor:
    inner = F.silu(torch.einsum("btd,ndh->btnh", read, block.gates)) * torch.einsum("btd,ndh->btnh", read, block.ups)
    return torch.einsum("btnh,nhd,btn->btd", inner, block.downs, gate)


def batched_matmul(block: Any, read: Tensor, gate: Tensor) -> Tensor:
    rows = read[..., None, None, :]
    inner = F.silu(rows @ block.gates) * (rows @ block.ups)
    return (gate.unsqueeze(-1) * (inner @ block.downs).squeeze(-2)).sum(-2)


def batched_bmm(block: Any, read: Tensor, gate: Tensor) -> Tensor:
    rows = read.reshape(1, -1, WIDTH).expand(EXPERTS, -1, -1)
    answer = torch.bmm(F.silu(torch.bmm(rows, block.gates)) * torch.bmm(rows, block.ups), block.downs)
    return (answer.transpose(0, 1).reshape(*read.shape[:-1], EXPERTS, WIDTH) * gate.unsqueeze(-1)).sum(-2)


FORMS = [loop, in_place, stacked_einsum, stacked_matmul, stacked_sum, flat_bmm, concatenated]
BATCHED = [batched_einsum, batched_matmul, batched_bmm]
BLOCKS = [(Block, form) for form in FORMS] + [(Batched, form) for form in BATCHED]


def calls(vocabulary: int = VOCABULARY) -> list[foldfx.Example]:
    return [foldfx.Example((torch.randint(vocabulary, shape), torch.randn(*shape, WIDTH))) for shape in SHAPES]


def of_experts(names: Any) -> list[str]:
    return [name for name in names if name.startswith(("experts.", "gates", "ups", "downs"))]


def check_folded(block: Block, result: foldfx.Result, agree: Callable[..., None]) -> None:
    """The experts are gone, the gate and the shared expert are as they were, and so are the outputs."""
    assert result.accepted
    kept = result.module.state_dict()
    assert of_experts(block.state_dict().keys())
    assert of_experts(kept.keys()) == []
    for name in ("router.weight", "shared.gate.weight", "shared.up.weight", "shared.down.weight"):
        assert torch.equal(kept[name], block.state_dict()[name])
    every = (
        torch.arange(block.embedding.num_embeddings).reshape(5, -1),
        torch.randn(5, block.embedding.num_embeddings // 5, WIDTH),
    )
    for args in (every, *(example.args for example in calls())):
        agree(block(*args), result.module(*args))


@pytest.mark.parametrize(("kind", "form"), BLOCKS, ids=lambda each: each.__name__)
def test_experts_over_the_embedding_become_tables(kind: type[Block], form: Sum, agree: Callable[..., None]) -> None:
    block = kind(form)
    result = foldfx.compile(block, calls())
    check_folded(block, result, agree)
    (rewrite,) = result.report.data["rewrites"]
    assert sum(value["width"] for table in rewrite["tables"] for value in table["values"]) == EXPERTS * WIDTH
    change = {
        kind: result.report.data["storage"]["after"][kind] - before
        for kind, before in result.report.data["storage"]["before"].items()
    }
    experts = 4 * 3 * EXPERTS * WIDTH * INNER
    table, embedding = 4 * VOCABULARY * EXPERTS * WIDTH, 4 * (VOCABULARY + 1) * WIDTH
    assert change == {"logical": table - experts - embedding, "backing": table - experts - embedding}


class Contextual(Block):
    """Also adds the embedding, so that there is a token input whatever the experts read."""

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        return super().forward(ids, hidden) + self.embedding(ids)


def contextual(rows: Tensor, x: Tensor) -> Tensor:
    return x


def both(rows: Tensor, x: Tensor) -> Tensor:
    return rows + x


@pytest.mark.parametrize("form", [loop, stacked_einsum, stacked_sum])
@pytest.mark.parametrize("reads", [contextual, both])
def test_experts_that_read_the_hidden_state_stay_and_the_reason_is_shown(
    reads: Callable[[Tensor, Tensor], Tensor], form: Sum, agree: Callable[..., None]
) -> None:
    model = Contextual(form, reads)
    facts = foldfx.analyze(model, calls()[0].args)
    answers = [
        node for node in facts if module_path(node).startswith("experts.") and node.target is torch.ops.aten.linear.default
    ]
    assert len(answers) == 3 * EXPERTS
    assert not any(facts[node].token_only for node in answers)
    assert all("which depends on context" in facts.explain(node.name) for node in answers)
    result = foldfx.compile(model, calls())
    assert of_experts(result.module.state_dict().keys()) == of_experts(model.state_dict().keys())
    for each in calls():
        agree(model(*each.args), result.module(*each.args))


def test_a_gate_over_the_token_is_no_reason_to_keep_anything() -> None:
    """The twin of the contextual gate: with a token-only one the whole sum is one table."""

    class Gated(Block):
        def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
            rows = self.norm(self.embedding(ids))
            answer: Tensor = hidden + self.mix(self, rows, self.router(rows).softmax(-1))
            return answer

    result = foldfx.compile(Gated(stacked_einsum), calls())
    assert result.accepted
    assert "router.weight" not in result.module.state_dict()
    (table,) = [table for rewrite in result.report.data["rewrites"] for table in rewrite["tables"]]
    assert [value["width"] for value in table["values"]] == [WIDTH]


LARGE = 400


def test_experts_smaller_than_their_tables_stay_under_storage_and_fold_for_latency_within_the_budget(
    agree: Callable[..., None],
) -> None:
    block = Block(stacked_einsum, vocabulary=LARGE)
    kept = foldfx.compile(block, calls(LARGE))
    assert of_experts(kept.module.state_dict().keys()) == of_experts(block.state_dict().keys())
    table = 4 * LARGE * EXPERTS * WIDTH
    short = foldfx.compile(block, calls(LARGE), objective="latency", max_table_bytes=table - 1)
    assert of_experts(short.module.state_dict().keys())
    folded = foldfx.compile(block, calls(LARGE), objective="latency", max_table_bytes=table)
    check_folded(block, folded, agree)
    assert folded.report.data["timing"]["after"] < folded.report.data["timing"]["before"]
