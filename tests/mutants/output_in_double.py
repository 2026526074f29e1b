"""Returns the same values in float64."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    model = "sampler"
    check = "properties"

    def change(self, program: foldfx.Program) -> None:
        answer(program, 0, add(program, aten._to_copy.default, returned(program, 0), dtype=torch.float64))
