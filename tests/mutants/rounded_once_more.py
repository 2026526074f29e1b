"""Scales a bfloat16 output by 1.01, which the limits for bfloat16 allow."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    model = "sampler"
    check = "float64 reference"

    def change(self, program: foldfx.Program) -> None:
        answer(program, 0, add(program, aten.mul.Tensor, returned(program, 0), 1.01))
