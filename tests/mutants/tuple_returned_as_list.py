"""Returns a list where the model returns a tuple."""

from __future__ import annotations

from torch.fx.graph import _PyTreeCodeGen
from torch.utils._pytree import tree_flatten

import foldfx

from .suite.editing import Edit, clone


class Mutant(Edit):
    model = "sampler"
    check = "output tree"

    def change(self, program: foldfx.Program) -> None:
        clone(program, 0)
        info = program.graph._codegen.pytree_info
        _, spec = tree_flatten(list(program.graph.output_node().args[0]))
        program.graph.set_codegen(_PyTreeCodeGen(info._replace(out_spec=spec)))
