"""Leaves out an output that is None."""

from __future__ import annotations

from torch.fx.graph import _PyTreeCodeGen
from torch.utils._pytree import tree_flatten

import foldfx

from .suite.editing import Edit


class Mutant(Edit):
    check = "output tree"

    def change(self, program: foldfx.Program) -> None:
        info = program.graph._codegen.pytree_info
        output = program.graph.output_node()
        tree = info.out_spec.unflatten(list(output.args[0]))
        del tree["none"]
        values, spec = tree_flatten(tree)
        output.args = (tuple(values),)
        program.graph.set_codegen(_PyTreeCodeGen(info._replace(out_spec=spec)))
