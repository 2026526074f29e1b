"""Takes what one call drew for a constant."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, add_state, aten, calls
from .suite.models import WIDTH


class Mutant(Edit):
    model = "sampler"
    check = "random state"

    def change(self, program: foldfx.Program) -> None:
        (draw,) = calls(program, aten.rand.default)
        constant = add_state(program, "drawn", torch.rand(WIDTH))
        draw.prepend(constant)
        draw.replace_all_uses_with(constant)
        program.graph.erase_node(draw)
