"""A program may be called with gradients on only where the model does then what it does without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import foldfx
from foldfx.errors import GradientsError

Body = Callable[[Tensor], Tensor]
IDS = torch.tensor([[0, 1, 2], [3, 4, 6]])


class Model(nn.Module):
    def __init__(self, body: Body, counts: bool = False) -> None:
        super().__init__()
        self.embedding, self.project = nn.Embedding(7, 64), nn.Linear(64, 8)
        self.register_buffer("total", torch.zeros(8))
        self.body, self.counts = body, counts
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.body(self.project(self.embedding(ids)))
        if self.counts:
            self.total.add_(x.sum((0, 1)))
        return x


def folded(model: nn.Module) -> foldfx.Result:
    result = foldfx.compile(model, [foldfx.Example((IDS,))])
    assert result.accepted
    return result


DEPENDENT: dict[str, tuple[Body, str]] = {
    "grad mode": (lambda x: x * 2 if torch.is_grad_enabled() else x, "output <root>: max-abs"),
    "requires_grad": (lambda x: x[:1] if x.requires_grad else x, "output <root>: shape"),
}
ALIKE: dict[str, Body] = {
    "the same": lambda x: x * 2 if torch.is_grad_enabled() else x + x,
    "laid out otherwise": lambda x: x.mT.contiguous().mT if torch.is_grad_enabled() else x,
}


@pytest.mark.parametrize("case", DEPENDENT)
def test_gradients_that_make_a_difference_are_refused(case: str) -> None:
    body, why = DEPENDENT[case]
    model = Model(body)
    result = folded(model)
    (fixed,) = result.report.to_dict()["specialised"]
    assert fixed["input"] == "gradients"
    assert why in fixed["what"]
    with pytest.raises(GradientsError, match=f"gradients are on, .*{why}.*Call it under torch.no_grad"):
        result.module(IDS)
    for without in (torch.no_grad(), torch.inference_mode()):
        with without:
            torch.testing.assert_close(result.module(IDS), model(IDS))


def test_a_model_that_cannot_run_with_gradients_does_nothing_else_with_them() -> None:
    model = Model(lambda x: torch.mul(x, 2, out=torch.empty(0)))
    result = folded(model)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        model(IDS)
    with torch.no_grad():
        torch.testing.assert_close(result.module(IDS), model(IDS))
    result.module(IDS)


@pytest.mark.parametrize("counts", [False, True], ids=["no writes", "a buffer is written"])
@pytest.mark.parametrize("case", ALIKE)
def test_gradients_that_make_no_difference_are_admitted(case: str, counts: bool) -> None:
    """The twin, and no history of gradients is left in the model."""
    model = Model(ALIKE[case], counts)
    result = folded(model)
    assert result.report.to_dict()["specialised"] == []
    assert not any(tensor.requires_grad for tensor in model.buffers())
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(result.module(IDS), model(IDS))
