"""The router that an audit of a fold rejected, in its own shape, with seeded weights and near ties planted in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from foldfx import Example

GENES, WIDTH, EXPERTS, SHARED, CHOSEN = 60_607, 512, 10, 5, 5

WEIGHTS = WIDTH * WIDTH + WIDTH * EXPERTS
"""Values of the router."""


class Embedder(nn.Module):
    """A gene's row, and rank-one experts on its expression: shared ones, and routed ones chosen by the gene's row.

    Each call leaves how evenly the experts were chosen in `load_balance_loss`.
    """

    load_balance_loss: Tensor

    def __init__(self, genes: int = GENES) -> None:
        super().__init__()
        self.genes = nn.Embedding(genes, WIDTH)
        self.hidden, self.score = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, EXPERTS, bias=False)
        self.shared = nn.Parameter(0.1 * torch.randn(SHARED, WIDTH))
        self.routed = nn.Parameter(0.1 * torch.randn(EXPERTS, WIDTH))
        self.eval().requires_grad_(False)

    def forward(self, ids: Tensor, expression: Tensor) -> Tensor:
        rows = self.genes(ids)
        scores = self.scores(rows)
        top = scores.topk(CHOSEN)
        weights = top.values.softmax(-1)
        routed = (weights[..., None] * self.routed[top.indices]).sum(-2)
        chosen = functional.one_hot(top.indices, EXPERTS).sum(-2).float().flatten(0, -2).mean(0)
        self.load_balance_loss = EXPERTS * (chosen * scores.softmax(-1).flatten(0, -2).mean(0)).sum()
        output: Tensor = rows + expression[..., None] * (self.shared.sum(0) + routed)
        return output

    def scores(self, rows: Tensor) -> Tensor:
        """The router: [..., WIDTH] → [..., EXPERTS]."""
        scores: Tensor = self.score(torch.relu(self.hidden(rows)))
        return scores

    def choose(self, ids: Tensor) -> Tensor:
        """The experts of each gene, [*ids, CHOSEN], int64."""
        return self.scores(self.genes(ids)).topk(CHOSEN).indices


def planted(genes: int, count: int, seed: int) -> tuple[Embedder, list[int]]:
    """A model of which `count` genes have their 5th and 6th scores less than 1e-8 apart, computed in float64.

    Returns:
        The model, in eval mode, and the ids of these genes.
    """
    torch.manual_seed(seed)
    model = Embedder(genes)
    ids = torch.randperm(genes)[:count].tolist()
    first, last = model.hidden.weight.double(), model.score.weight.double()
    for gene in ids:
        row = model.genes.weight[gene].double()
        for _ in range(30):
            apart, slope = _gap(first, last, row)
            row = row - apart * slope / slope.dot(slope)
        # Rounding the row to float32 moves the scores by about 1e-8: the nearest of some roundings is taken.
        directions = torch.randn(64, WIDTH, dtype=torch.float64) * row.abs() * 2**-24
        roundings = [(row + move).float() for move in directions]
        model.genes.weight[gene] = min(roundings, key=lambda rounded: abs(_gap(first, last, rounded.double())[0]))
    return model, sorted(ids)


def model() -> Embedder:
    """The full size, with 20 planted genes: for `--factory foldfx.examples.audited_router:model`."""
    return planted(GENES, 20, seed=0)[0]


def examples(genes: int = GENES) -> list[Example]:
    """Calls of ids [B, S], int64, and expression [B, S], float32, in which no near tie is likely to occur."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, 5), (1, 32), (4, 32))
    ids = [torch.randint(genes, shape, generator=generator) for shape in shapes]
    return [Example((each, 10 * torch.rand(each.shape, generator=generator))) for each in ids]


def _gap(first: Tensor, last: Tensor, row: Tensor) -> tuple[float, Tensor]:
    """The distance of the 5th score to the 6th, and its derivative by the row."""
    row = row.detach().requires_grad_(True)
    with torch.enable_grad():
        scores = last @ torch.relu(first @ row)
        best = scores.argsort(descending=True)
        apart = scores[best[CHOSEN - 1]] - scores[best[CHOSEN]]
    (slope,) = torch.autograd.grad(apart, row)
    return float(apart.detach()), slope
