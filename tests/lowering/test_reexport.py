"""A folded program is plain ATen: it exports again, is saved and loaded, and compiles."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor, nn

import foldfx

VOCABULARY = 9


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(VOCABULARY, 32), nn.Linear(32, 6)
        self.eval()

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        x = torch.tanh(self.project(self.embedding(ids))).view(*ids.shape, 2, 3)
        return x.transpose(1, 2) * hidden


def call(batch: int = 3, length: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randint(VOCABULARY, (batch, length)), torch.randn(batch, 2, length, 3)


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, nn.Module]:
    model = Model()
    result = foldfx.compile(model, [foldfx.Example(call())])
    assert result.accepted
    return model, result.module


def assert_close(reference: Tensor, candidate: Tensor) -> None:
    error = (candidate.double() - reference.double()).abs()
    assert error.max() <= 1e-5
    assert error.norm() <= 1e-5 * reference.double().norm()


def test_no_foldfx_operation_is_left(pair: tuple[nn.Module, nn.Module]) -> None:
    _, folded = pair
    assert isinstance(folded, torch.fx.GraphModule)
    namespaces = {str(node.target).split(".")[0] for node in folded.graph.nodes if node.op == "call_function"}
    assert namespaces <= {"aten", "<built-in function mul>"}


@pytest.mark.parametrize("strict", [False, True])
def test_exports_again_with_dynamic_sizes(pair: tuple[nn.Module, nn.Module], strict: bool) -> None:
    model, folded = pair
    auto = torch.export.Dim.AUTO
    shapes = ({0: auto, 1: auto}, {0: auto, 2: auto})
    stored = io.BytesIO()
    torch.export.save(torch.export.export(folded, call(), dynamic_shapes=shapes, strict=strict), stored)
    stored.seek(0)
    loaded = torch.export.load(stored).module()
    args = call(2, 7)
    assert_close(model(*args), loaded(*args))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles(pair: tuple[nn.Module, nn.Module], backend: str) -> None:
    model, folded = pair
    torch._dynamo.reset()
    compiled = torch.compile(folded, backend=backend, fullgraph=backend == "eager")
    for args in (call(), call(2, 7)):
        assert_close(model(*args), compiled(*args))


def test_folds_nothing_when_folded_again(pair: tuple[nn.Module, nn.Module]) -> None:
    _, folded = pair
    again = foldfx.compile(folded, [foldfx.Example(call())])
    assert again.status == "unchanged"
    args = call(2, 5)
    assert torch.equal(folded(*args), again.module(*args))
