"""Computes relu(x) as x · (x > 0), which gives -0.0."""

from __future__ import annotations

import foldfx

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    check = "sign of zero"

    def change(self, program: foldfx.Program) -> None:
        (x,) = returned(program, "gate").args
        answer(program, "gate", add(program, aten.mul.Tensor, x, add(program, aten.gt.Scalar, x, 0)))
