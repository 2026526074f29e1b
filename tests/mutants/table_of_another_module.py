"""Tabulates with the weights of another linear layer."""

from __future__ import annotations

from torch import Tensor

import foldfx
from foldfx.passes import PassContext, PassResult

from .suite.editing import SpoiledFold, state


class Mutant(SpoiledFold):
    def run(self, program: foldfx.Program, context: PassContext) -> PassResult:
        self.weights = [state(program, name).detach() for name in ("words.weight", "norm.weight", "norm.bias")]
        self.layer = state(program, "down.weight").detach(), state(program, "down.bias").detach()
        return super().run(program, context)

    def spoil(self, table: Tensor) -> Tensor:
        rows, weight, bias = self.weights
        normed = (rows - rows.mean(-1, keepdim=True)) / rows.std(-1, correction=0, keepdim=True) * weight + bias
        return (normed @ self.layer[0].t() + self.layer[1]).relu()
