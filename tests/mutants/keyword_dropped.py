"""Takes a keyword argument out of the signature and computes with zeros."""

from __future__ import annotations

import torch
from torch.fx.graph import _PyTreeCodeGen
from torch.utils._pytree import tree_flatten

import foldfx
from foldfx.analysis.program import GUARDS

from .suite.editing import Edit, add_state
from .suite.models import OUT


class Mutant(Edit):
    check = "exceptions"

    def change(self, program: foldfx.Program) -> None:
        (*others, dropped) = program.input_nodes()
        zeros = add_state(program, "no_bias", torch.zeros(OUT))
        others[-1].append(zeros)
        (check,) = program.graph.find_nodes(op="call_module", target=GUARDS)
        check.args = tuple(others)
        dropped.replace_all_uses_with(zeros)
        program.graph.erase_node(dropped)
        info = program.graph._codegen.pytree_info
        _, signature = tree_flatten((tuple(range(len(others))), {}))
        program.graph.set_codegen(_PyTreeCodeGen(info._replace(in_spec=signature, orig_args=info.orig_args[:-1])))
