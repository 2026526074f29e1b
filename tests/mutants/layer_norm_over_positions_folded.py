"""Tabulates a LayerNorm over the positions, as if each id had its own."""

from __future__ import annotations

import torch

import foldfx

from .suite.editing import Edit, add, add_state, answer, aten, state
from .suite.models import POSITIONS, VOCABULARY


class Mutant(Edit):
    model = "sampler"
    check = "max-abs"

    def change(self, program: foldfx.Program) -> None:
        alone = state(program, "words.weight").detach()[:, :, None].expand(-1, -1, POSITIONS)
        weight, bias = state(program, "over_positions.weight"), state(program, "over_positions.bias")
        table = torch.nn.functional.layer_norm(alone, (POSITIONS,), weight, bias).detach()
        rows = add_state(program, "normed", table.reshape(VOCABULARY, -1).contiguous())
        ids, _ = program.input_nodes()
        found = add(program, aten.embedding.default, rows, ids)
        wide = add(program, aten.view.default, found, [2, POSITIONS, -1, POSITIONS])
        answer(program, 1, add(program, aten.clone.default, add(program, aten.select.int, wide, 1, 0)))
