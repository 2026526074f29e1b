"""Returns the outputs as a tuple instead of by name."""

from __future__ import annotations

from torch.fx.graph import _PyTreeCodeGen
from torch.utils._pytree import tree_flatten

import foldfx

from .suite.editing import Edit, clone


class Mutant(Edit):
    check = "output tree"

    def change(self, program: foldfx.Program) -> None:
        clone(program, "gate")
        info = program.graph._codegen.pytree_info
        _, flat = tree_flatten(tuple(program.graph.output_node().args[0]))
        program.graph.set_codegen(_PyTreeCodeGen(info._replace(out_spec=flat)))
