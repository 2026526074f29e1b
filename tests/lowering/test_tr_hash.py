"""A TR-Hash node lowered to plain ATen computes what the operation does, and refuses what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import foldfx
from foldfx.lowering import PROVIDERS, is_semantic, lower
from foldfx.runtime.tr_hash import TRHashEngine, TRHashEngineConfig

VOCABULARY, WIDTH = 11, 32


def layer(**values: object) -> TRHashEngine:
    sizes = {"hidden_size": WIDTH, "vocab_size": VOCABULARY, "num_experts": 8, "shared_width": 24, "expert_width": 8}
    return TRHashEngine(TRHashEngineConfig(**sizes | {"precision": "fp32", "initializer_range": 0.3} | values))  # type: ignore[arg-type]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("values", [{}, {"shared_width": 0}, {"routed_output_scale": 2.0, "shared_output_scale": 0.5}], ids=str)
def test_plain_aten_in_place_of_the_node(values: dict[str, object], dynamic: bool) -> None:
    engine = layer(**values).eval()
    call = torch.randn(2, 5, WIDTH), torch.randint(VOCABULARY, (2, 5))
    sizes = {0: Dim.AUTO, 1: Dim.AUTO}
    module = (
        torch.export.export(engine, call, dynamic_shapes=(sizes, sizes) if dynamic else None).run_decompositions({}).module()
    )
    claims = lower(module, PROVIDERS)
    assert [claim.kernel for claim in claims] == ["aten masked-dense SwiGLU"]
    assert not any(is_semantic(node) for node in module.graph.nodes)
    namespaces = {str(node.target).split(".")[0] for node in module.graph.nodes if node.op == "call_function"}
    assert namespaces <= {"aten"}
    for shape in ((2, 5), (3, 40)) if dynamic else ((2, 5),):
        hidden, ids = torch.randn(*shape, WIDTH), torch.randint(-2, VOCABULARY + 2, shape)
        found, expected = module(hidden, ids), engine(hidden, ids)
        assert float((found - expected).abs().max()) <= 1e-5
        assert float((found - expected).norm() / expected.norm()) <= 1e-6


def test_ids_outside_still_raise_where_they_did() -> None:
    engine = layer(out_of_range="error").eval()
    module = torch.export.export(engine, (torch.randn(2, 5, WIDTH), torch.zeros(2, 5, dtype=torch.int64))).module()
    lower(module, PROVIDERS)
    for outside in (-1, VOCABULARY):
        with pytest.raises(IndexError):
            module(torch.randn(2, 5, WIDTH), torch.full((2, 5), outside))


def test_a_fold_beside_the_layer() -> None:
    """A model that folds elsewhere is lowered as a whole, the layer included."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.project, self.engine = nn.Embedding(VOCABULARY, 64), nn.Linear(64, WIDTH), layer()

        def forward(self, ids: Tensor, state: Tensor) -> Tensor:
            return self.engine(torch.tanh(self.project(self.embedding(ids))) + state, ids)

    model = Model().eval()
    examples = [foldfx.Example((torch.randint(VOCABULARY, shape), torch.randn(*shape, WIDTH))) for shape in ((2, 5), (3, 7))]
    result = foldfx.compile(model, examples)
    assert result.accepted
    kernels = {claim["kernel"] for claim in result.report.data["kernels"]}
    assert "aten masked-dense SwiGLU" in kernels
