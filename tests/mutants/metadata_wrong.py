"""Records a wrong dtype for a new value."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, add, answer, aten, returned


class Mutant(Edit):
    check = "metadata"

    def change(self, program: foldfx.Program) -> None:
        new = add(program, aten.clone.default, returned(program, "gate"))
        other = add(program, aten._to_copy.default, returned(program, "gate"), dtype=torch.float64)
        new.meta["val"] = other.meta["val"]
        answer(program, "gate", new)
