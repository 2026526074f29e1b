"""The run whose report is opened: three steps, a fold, a view, a choice among experts, and lines that stay."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import foldfx


class Router(nn.Module):
    """Scores by token, whose best two are chosen; then a context and a dozen operations on it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.first, self.second = nn.Embedding(9, 32), nn.Linear(32, 48), nn.Linear(48, 4)
        self.eval()

    def forward(self, ids: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.second(torch.tanh(self.first(self.embedding(ids))))
        mixed = scores * scale
        rows = mixed.flatten(0, 1)
        for _ in range(12):
            rows = torch.sin(rows)
        return scores.topk(2).indices, rows


def compiled() -> foldfx.Result:
    torch.manual_seed(0)
    args = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.ones(2, 3, 1)
    return foldfx.compile(Router(), [foldfx.Example(args)], dynamic=False)
