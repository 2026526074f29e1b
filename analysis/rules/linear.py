"""Contractions: matrix products of every spelling, as one rule over labelled dimensions.

Contracted dimensions must hold features only, so each element of the result sees one row; every other dimension keeps
its atoms. A weight that is constant, or token-only itself, is treated alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters, ascii_lowercase, ascii_uppercase

import torch

from ..rows import Dim, Rows, broadcast, join_dims, one_row_each, row_local, show
from .table import Call, Layouts, NotRowLocal, Operand, RuleTable

aten = torch.ops.aten
TABLE = RuleTable("linear")


def contract(operands: Sequence[tuple[Operand, str]], output: str) -> Rows:
    """Einstein summation over layouts: `operands` are (value, one label a dimension), `output` the labels kept.

    Raises:
        NotRowLocal: a summed label holds a token axis.
        LayoutMismatch: operands put different rows under one label.
    """
    joint: dict[str, Dim] = {}
    for operand, labels in operands:
        if len(set(labels)) != len(labels):
            raise NotRowLocal(f"a diagonal of {operand.node} (labels {labels})")
        for label, dim in zip(labels, operand.rows, strict=True):
            if label not in output and not row_local(dim):
                raise NotRowLocal(
                    f"a product sums over {show((dim,))} of {operand.node}: it would mix the rows of different tokens"
                )
            joint[label] = join_dims(joint.get(label, ()), dim)
    return one_row_each(tuple(joint[label] for label in output))


def _plus(product: Rows, bias: Operand | None) -> Rows:
    return product if bias is None else broadcast([product, bias.rows])


@TABLE.rule(aten.linear.default)
def linear(call: Call) -> Layouts:
    """y[.., o] = Σ_k x[.., k] W[o, k] + b[o]."""
    x, weight = call.operand("input"), call.operand("weight")
    rows = "abcdefgh"[: x.rank - 1]
    out = "o" if weight.rank == 2 else ""
    return _plus(contract([(x, rows + "k"), (weight, out + "k")], rows + out), call.optional("bias"))


def _matmul(a: Operand, b: Operand) -> Rows:
    batch = "abcdefgh"
    left = batch[8 - max(a.rank - 2, 0) :] if a.rank > 2 else ""
    right = batch[8 - max(b.rank - 2, 0) :] if b.rank > 2 else ""
    rows = "m" if a.rank > 1 else ""
    columns = "n" if b.rank > 1 else ""
    longest = max(left, right, key=len)
    return contract([(a, left + rows + "k"), (b, right + "k" + columns)], longest + rows + columns)


@TABLE.rule(aten.matmul.default)
def matmul(call: Call) -> Layouts:
    return _matmul(call.operand("self"), call.operand("other"))


@TABLE.rule(aten.mm.default, aten.bmm.default)
def mm(call: Call) -> Layouts:
    return _matmul(call.operand("self"), call.operand("mat2"))


@TABLE.rule(aten.mv.default)
def mv(call: Call) -> Layouts:
    return _matmul(call.operand("self"), call.operand("vec"))


@TABLE.rule(aten.addmm.default)
def addmm(call: Call) -> Layouts:
    return _plus(_matmul(call.operand("mat1"), call.operand("mat2")), call.operand("self"))


@TABLE.rule(aten.baddbmm.default)
def baddbmm(call: Call) -> Layouts:
    return _plus(_matmul(call.operand("batch1"), call.operand("batch2")), call.operand("self"))


@TABLE.rule(aten.addmv.default)
def addmv(call: Call) -> Layouts:
    return _plus(_matmul(call.operand("mat"), call.operand("vec")), call.operand("self"))


@TABLE.rule(aten.bilinear.default)
def bilinear(call: Call) -> Layouts:
    """y[.., o] = Σ_ij x[.., i] z[.., j] W[o, i, j] + b[o]."""
    x, z = call.operand("input1"), call.operand("input2")
    rows = "abcdefgh"[: x.rank - 1]
    product = contract([(x, rows + "k"), (z, rows + "m"), (call.operand("weight"), "okm")], rows + "o")
    return _plus(product, call.optional("bias"))


@TABLE.rule(aten.cdist.default)
def cdist(call: Call) -> Layouts:
    """y[.., m, n] = ‖x[.., m, :] − z[.., n, :]‖."""
    z = call.operand("x2")
    return _matmul(call.operand("x1"), Operand(z.node, (*z.rows[:-2], z.rows[-1], z.rows[-2]), z.value))


@TABLE.rule(aten.tensordot.default)
def tensordot(call: Call) -> Layouts:
    """Σ over pairs of dimensions; the others of both, in order."""
    one, other = call.operand("self"), call.operand("other")
    left, right = [*ascii_lowercase[: one.rank]], [*ascii_uppercase[: other.rank]]
    for mine, theirs in zip(call.integers("dims_self"), call.integers("dims_other"), strict=True):
        right[theirs] = left[mine]
    output = "".join(label for label in left + right if (label in left) != (label in right))
    return contract([(one, "".join(left)), (other, "".join(right))], output)


@TABLE.rule(aten.kron.default)
def kron(call: Call) -> Layouts:
    """y[i·n + j] = x[i] z[j] along every dimension, aligned at the last."""
    x, z = call.operand("self").rows, call.operand("other").rows
    missing = len(z) - len(x)
    return one_row_each(tuple(a + b for a, b in zip(((),) * missing + x, ((),) * -missing + z, strict=True)))


@TABLE.rule(aten.outer.default)
def outer(call: Call) -> Layouts:
    """y[i, j] = x[i] z[j]."""
    return contract([(call.operand("self"), "a"), (call.operand("vec2"), "b")], "ab")


@TABLE.rule(aten.einsum.default)
def einsum(call: Call) -> Layouts:
    """Explicit equations; an ellipsis stands for the dimensions that are not named, aligned at the last of them."""
    equation = str(call.argument("equation")).replace(" ", "")
    if "->" not in equation:
        raise NotRowLocal(f"einsum {equation!r} leaves the output implicit; write every label of it")
    inputs, output = equation.split("->")
    unnamed = "".join(letter for letter in ascii_letters if letter not in equation)
    operands, longest = [], ""
    for operand, labels in zip(call.operands(), inputs.split(","), strict=True):
        rank = operand.rank - len(labels.replace("...", ""))
        ellipsis = unnamed[len(unnamed) - rank :]
        longest = max(longest, ellipsis, key=len)
        operands.append((operand, labels.replace("...", ellipsis)))
    return contract(operands, output.replace("...", longest))
