"""A Llama of twelve layers over 84 characters: by execution class its complete outputs are the original's, bit by bit."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import foldfx
from foldfx.passes.ladder import BY_CLASS
from foldfx.passes.verification.figures import EXACT

VOCABULARY, WIDTH, LAYERS = 84, 512, 12
EXAMPLES = ((3, 5), (1, 1), (1, 2), (1, 3), (1, 16), (2, 257))
SHAPES = (*EXAMPLES, *((batch, length) for batch in (1, 2, 3, 4, 5) for length in range(1, 20)), (1, 31), (2, 64), (3, 43))


class Block(nn.Module):
    def __init__(self, heads: int = 8, inner: int = 128) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, inner, bias=False), nn.Linear(WIDTH, inner, bias=False)
        self.down = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        n = self.before(x)
        q, k, v = (f(n).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, length, width))
        n = self.between(x)
        return x + self.down(functional.silu(self.gate(n)) * self.up(n))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Generator[int, None, None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def differing(model: nn.Module, folded: nn.Module) -> list[tuple[int, int]]:
    """The shapes on which some bit of the complete outputs differs."""
    found = []
    with torch.no_grad():
        for shape in SHAPES:
            ids = torch.randint(VOCABULARY, shape)
            if not torch.equal(model(ids).view(torch.int32), folded(ids).view(torch.int32)):
                found.append(shape)
    return found


def rounds_by_count(model: Llama) -> bool:
    """Whether some row of the first projections changes with the number of rows: this machine has classes at all."""
    with torch.no_grad():
        n = model.blocks[0].before(model.embedding.weight)
        linears = (model.blocks[0].q, model.blocks[0].k, model.blocks[0].v)
        return any(not torch.equal(f(n)[:count], f(n[:count])) for f in linears for count in range(1, 20))


def test_the_fold_of_every_shape_is_the_original(threads: int) -> None:
    """Accepted with limits of zero, nothing differs; else the report says why not, and what is handed back is the model."""
    assert len(SHAPES) >= 100
    model = Llama().eval().requires_grad_(False)
    examples = [foldfx.Example((torch.randint(VOCABULARY, shape),)) for shape in EXAMPLES]
    result = foldfx.compile(model, examples, pipeline=foldfx.Pipeline(limits=EXACT))
    report = result.report.to_dict()
    rejected = [each["reason"] for each in report["outcomes"] if each["status"] == "rejected"]
    if rounds_by_count(model):
        assert rejected
        assert rejected[0].startswith("wrong: ")
        assert result.counterexamples
    assert differing(model, result.module) == []
    if not result.accepted:
        assert any(each["status"] == "refused" or len(rejected) > 1 for each in report["outcomes"])
        assert report["storage"]["after"] == report["storage"]["before"]
        assert report["rewrites"] == []
        return
    assert report["verification"]["outputs"]["bitwise"]
    assert all(each["bitwise"] for each in report["verification"]["layouts"])
    assert report["storage"]["after"]["logical"] < report["storage"]["before"]["logical"]
    (rewrite,) = report["rewrites"]
    assert rewrite["name"].endswith(BY_CLASS) is bool(rejected)
    for classes in rewrite["classes"]:
        assert classes["evidence"][0].startswith(f"measured at {threads} thread(s)")


def test_one_table_is_bounded_there_and_says_so() -> None:
    """The twin, with the default limits: where the machine rounds by the number of rows, nothing claims to be bitwise."""
    model = Llama().eval().requires_grad_(False)
    result = foldfx.compile(model, [foldfx.Example((torch.randint(VOCABULARY, (3, 5)),))])
    report = result.report.to_dict()
    assert result.accepted, str(result.report)
    bitwise = all(each["bitwise"] for each in (*report["verification"]["layouts"], report["verification"]["outputs"]))
    if differing(model, result.module):
        assert [each["classes"] for each in report["rewrites"]] == [[]]
        assert not bitwise
