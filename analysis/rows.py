"""How the rows of token ids lie in a value: the shape algebra behind the dependence facts.

Every dimension of a value is an ordered product of *atoms*, outermost first. An atom is

* `TokenAxis`: an axis of one or more token inputs, or one digit of the index along it: steps of `stride` rows;
* `Feature`: a static extent along which the value may vary;
* `Uniform`: an extent, static or symbolic, along which the value does not vary (a broadcast).

Atoms of size one are dropped: a dimension of size one is the empty product. A view regroups the flat sequence of
atoms and splits them where it must; a token axis so split is still one token for each combination of its digits. An
operation on several values needs dimension by dimension equal atoms, or a broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy


@dataclass(frozen=True)
class TokenAxis:
    """An axis of token ids, or one digit of the index along it.

    Attributes:
        axes: the (input name, dimension) pairs that run along it together.
        size: its extent.
        whole: the extent of the full axis.
        stride: how many rows of the axis one step moves; 1 for a full axis and for the innermost digit.
    """

    axes: frozenset[tuple[str, int]]
    size: sympy.Expr
    whole: sympy.Expr
    stride: sympy.Expr = sympy.Integer(1)

    def __str__(self) -> str:
        name = "·".join(f"{name}[{dim}]" for name, dim in sorted(self.axes))
        return name if self.size == self.whole else f"{self.size} of {name} in steps of {self.stride}"


@dataclass(frozen=True)
class Feature:
    size: sympy.Expr

    def __str__(self) -> str:
        return str(self.size)


@dataclass(frozen=True)
class Uniform:
    size: sympy.Expr

    def __str__(self) -> str:
        return f"={self.size}"


Atom = TokenAxis | Feature | Uniform
Dim = tuple[Atom, ...]
Rows = tuple[Dim, ...]


class LayoutMismatch(Exception):
    """Two layouts cannot be brought together, or a view does not divide them; the text says which.

    `position` is true where one operand varies along a token axis, so the result depends on the position as well.
    """

    def __init__(self, text: str, *, position: bool = False) -> None:
        super().__init__(text)
        self.position = position


def show(rows: Rows) -> str:
    """`[ids[0]][ids[1]][64]`: one bracket a dimension."""
    return "".join("[" + "·".join(map(str, dim)) + "]" for dim in rows)


def extent(dim: Sequence[Atom]) -> sympy.Expr:
    """The size of a dimension: the product of its atoms."""
    return sympy.Mul(*(atom.size for atom in dim)) if dim else sympy.Integer(1)


def axis(name: str, dim: int, size: sympy.Expr) -> Dim:
    return () if size == 1 else (TokenAxis(frozenset({(name, dim)}), size, size),)


def feature(size: sympy.Expr) -> Dim:
    """A dimension of static extent.

    Raises:
        LayoutMismatch: `size` is symbolic.
    """
    if not size.is_Integer:
        raise LayoutMismatch(f"a dimension of symbolic size {size} where a feature dimension is needed")
    return () if size == 1 else (Feature(size),)


def varying(dim: Dim) -> Dim:
    """A row-local dimension along which the value has begun to vary: its broadcasts become features."""
    return tuple(Feature(atom.size) for atom in dim)


def uniform(size: sympy.Expr) -> Dim:
    return () if size == 1 else (Uniform(size),)


def is_static(atom: Atom) -> bool:
    """A feature, or a broadcast of known extent: index along it says nothing about tokens or lengths."""
    return isinstance(atom, Feature) or (isinstance(atom, Uniform) and atom.size.is_Integer is True)


def row_local(dim: Dim) -> bool:
    """Whether an operation may mix along this dimension and still see one token only."""
    return all(is_static(atom) for atom in dim)


def token_axes(rows: Rows) -> dict[tuple[str, int], list[TokenAxis]]:
    """The atoms of every (input, dimension) that occurs, in the order they occur."""
    found: dict[tuple[str, int], list[TokenAxis]] = {}
    for dim in rows:
        for atom in dim:
            if isinstance(atom, TokenAxis):
                for pair in atom.axes:
                    found.setdefault(pair, []).append(atom)
    return found


def quotient(numerator: sympy.Expr, denominator: sympy.Expr) -> sympy.Expr | None:
    """`numerator / denominator` when it is an integer for every value of the symbols, else None."""
    if denominator == 0:
        return None
    quotient = sympy.cancel(numerator / denominator)
    if not quotient.free_symbols:
        return quotient if quotient.is_Integer else None
    if not quotient.is_polynomial():
        return None
    coefficients = sympy.Poly(quotient, *quotient.free_symbols).coeffs()
    return quotient if all(coefficient.is_Integer for coefficient in coefficients) else None


def _split(atom: Atom, outer: sympy.Expr) -> tuple[Atom, Atom] | None:
    """`atom` as an outer part of the given size and the rest, or None where it does not divide."""
    rest = quotient(atom.size, outer)
    if rest is None:
        return None
    if isinstance(atom, TokenAxis):
        return replace(atom, size=outer, stride=atom.stride * rest), replace(atom, size=rest)
    return type(atom)(outer), type(atom)(rest)


def regroup(rows: Rows, sizes: Sequence[sympy.Expr]) -> Rows:
    """The layout after a view to `sizes`: the flat sequence of atoms dealt out again.

    Raises:
        LayoutMismatch: the sizes do not divide, as far as their symbols tell.
    """
    left: list[Atom] = [atom for dim in rows for atom in dim]
    result: list[Dim] = []
    for size in sizes:
        dim: list[Atom] = []
        missing = size
        while missing != 1:
            if not left:
                raise LayoutMismatch(f"a view to size {size} does not divide {show(rows)}")
            atom = left[0]
            rest = quotient(missing, atom.size)
            if rest is not None:
                dim.append(left.pop(0))
                missing = rest
                continue
            parts = _split(atom, missing)
            if parts is None:
                raise LayoutMismatch(f"a view to size {size} cuts through {atom} of {show(rows)}")
            dim.append(parts[0])
            left[0] = parts[1]
            missing = sympy.Integer(1)
        result.append(_merged(dim))
    if left:
        raise LayoutMismatch(f"a view to {list(sizes)} leaves part of {show(rows)}")
    return tuple(result)


def _merged(dim: Sequence[Atom]) -> Dim:
    """Neighbouring digits of one token axis put together again."""
    result: list[Atom] = []
    for atom in dim:
        outer = result[-1] if result else None
        if (
            isinstance(atom, TokenAxis)
            and isinstance(outer, TokenAxis)
            and outer.axes == atom.axes
            and outer.stride == atom.stride * atom.size
        ):
            result[-1] = replace(atom, size=outer.size * atom.size)
        else:
            result.append(atom)
    return tuple(result)


def _join_atoms(one: Atom, other: Atom) -> Atom:
    """The atom along which a joint function of both values varies."""
    if one == other or isinstance(other, Uniform):
        return one
    if isinstance(one, Uniform):
        return other
    if isinstance(one, TokenAxis) and isinstance(other, TokenAxis):
        union = one.axes | other.axes
        if len({name for name, _ in union}) == len(union) and (one.whole, one.stride) == (other.whole, other.stride):
            return replace(one, axes=union)
        raise LayoutMismatch(f"token axes {one} and {other} meet in one dimension: different tokens in one row")
    varying, token = (one, other) if isinstance(one, Feature) else (other, one)
    raise LayoutMismatch(f"an operand varies ({varying} values) along token axis {token}", position=True)


def join_dims(one: Dim, other: Dim) -> Dim:
    """One dimension of a joint function of two values; size one broadcasts.

    Raises:
        LayoutMismatch: their atoms do not match.
    """
    if not one or not other:
        return one or other
    left, right = list(one), list(other)
    joint: list[Atom] = []
    while left and right:
        a, b = left[0], right[0]
        if a.size == b.size:
            joint.append(_join_atoms(left.pop(0), right.pop(0)))
            continue
        if (parts := _split(a, b.size)) is not None:
            left[:1] = parts
        elif (parts := _split(b, a.size)) is not None:
            right[:1] = parts
        else:
            raise LayoutMismatch(f"{show((one,))} and {show((other,))} do not line up")
    if left or right:
        raise LayoutMismatch(f"{show((one,))} and {show((other,))} differ in size")
    return _merged(joint)


def broadcast(layouts: Sequence[Rows]) -> Rows:
    """The layout of an elementwise function of several values, aligned at the last dimension.

    Raises:
        LayoutMismatch: an operand varies along another's token axis, or two tokens meet in one row.
    """
    rank = max(map(len, layouts))
    result: list[Dim] = [()] * rank
    for rows in layouts:
        padded = ((),) * (rank - len(rows)) + tuple(rows)
        result = [join_dims(a, b) for a, b in zip(result, padded, strict=True)]
    return one_row_each(tuple(result))


def one_row_each(rows: Rows) -> Rows:
    """`rows` unchanged.

    Raises:
        LayoutMismatch: a token axis (or a digit of it) occurs twice, so one element would see two tokens of one input.
    """
    for (name, dim), atoms in token_axes(rows).items():
        reached = sympy.Integer(1)
        for atom in sorted(atoms, key=lambda atom: sympy.default_sort_key(atom.stride)):
            if atom.stride != reached:
                raise LayoutMismatch(f"token axis {name}[{dim}] occurs twice in {show(rows)}: two tokens in one value")
            reached = sympy.expand(reached * atom.size)
        if reached != sympy.expand(atoms[0].whole):
            raise LayoutMismatch(f"token axis {name}[{dim}] is not whole in {show(rows)}")
    return rows
