"""Returns the same values in another memory layout."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    check = "strides"

    def change(self, program: foldfx.Program) -> None:
        turned = add(program, aten.transpose.int, returned(program, "sums"), 1, 2)
        copied = add(program, aten.clone.default, turned, memory_format=torch.contiguous_format)
        answer(program, "sums", add(program, aten.transpose.int, copied, 1, 2))
