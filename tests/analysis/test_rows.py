"""The shape algebra of token rows: texts for the cases a reader meets, and index arrays as the model of all others."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from math import prod

import numpy as np
import pytest
import sympy
from hypothesis import assume, given
from hypothesis import strategies as st

from foldfx.analysis.rows import (
    Atom,
    Dim,
    Feature,
    LayoutMismatch,
    Rows,
    TokenAxis,
    Uniform,
    axis,
    broadcast,
    extent,
    feature,
    join_dims,
    one_row_each,
    regroup,
    row_local,
    show,
    token_axes,
    uniform,
    varying,
)

B, T = sympy.symbols("B T", integer=True, nonnegative=True)


def size(number: int | sympy.Expr) -> sympy.Expr:
    return sympy.sympify(number)


def token(dim: int, extent_: int | sympy.Expr, name: str = "ids") -> Dim:
    return axis(name, dim, size(extent_))


def features(number: int) -> Dim:
    return feature(size(number))


def same(number: int | sympy.Expr) -> Dim:
    return uniform(size(number))


def digits(dim: int, whole: int, *sizes: int) -> list[TokenAxis]:
    """The digits of one token axis, outermost first."""
    assert prod(sizes) == whole
    strides = [prod(sizes[place + 1 :]) for place in range(len(sizes))]
    (atom,) = token(dim, whole)
    assert isinstance(atom, TokenAxis)
    return [replace(atom, size=size(each), stride=size(stride)) for each, stride in zip(sizes, strides, strict=True)]


SYMBOLIC: Rows = (token(0, B), token(1, T), features(12))
STATIC: Rows = (token(0, 2), token(1, 6), features(4))


@pytest.mark.parametrize(
    ("rows", "sizes", "shown"),
    [
        (SYMBOLIC, [B * T, 12], "[ids[0]·ids[1]][12]"),
        (SYMBOLIC, [B, T * 12], "[ids[0]][ids[1]·12]"),
        (SYMBOLIC, [B, T, 3, 1, 4], "[ids[0]][ids[1]][3][][4]"),
        (SYMBOLIC, [B, 1, T * 3, 4], "[ids[0]][][ids[1]·3][4]"),
        (SYMBOLIC, [B * T * 12], "[ids[0]·ids[1]·12]"),
        (STATIC, [2, 3, 8], "[ids[0]][3 of ids[1] in steps of 2][2 of ids[1] in steps of 1·4]"),
        (STATIC, [4, 12], "[ids[0]·2 of ids[1] in steps of 3][3 of ids[1] in steps of 1·4]"),
        ((token(0, 2 * T), features(4)), [2, T, 4], "[2 of ids[0] in steps of T][T of ids[0] in steps of 1][4]"),
        ((features(6), same(4), token(0, T)), [3, 8, T], "[3][2·=4][ids[0]]"),
    ],
)
def test_a_view_deals_the_atoms_out_again_and_back(rows: Rows, sizes: list[int | sympy.Expr], shown: str) -> None:
    viewed = regroup(rows, [size(each) for each in sizes])
    assert show(viewed) == shown
    back = regroup(viewed, [extent(dim) for dim in rows])
    assert token_axes(back) == token_axes(rows)
    assert [extent(dim) for dim in back] == [extent(dim) for dim in rows]


@pytest.mark.parametrize(
    ("rows", "sizes", "why"),
    [
        ((token(0, T), features(12)), [12, T], r"a view to size 12 cuts through ids\[0\]"),
        (SYMBOLIC, [T, B, 12], r"a view to size T cuts through ids\[0\]"),
        (SYMBOLIC, [B * 2, T, 6], "cuts through"),
        ((token(0, T), features(12)), [T, 5], "a view to size 5 cuts through 12"),
        (STATIC, [2, 4, 6], r"a view to size 4 cuts through ids\[1\]"),
        (STATIC, [2, 6], r"leaves part of \[ids\[0\]\]\[ids\[1\]\]\[4\]"),
        (STATIC, [2, 6, 4, 2], "does not divide"),
    ],
)
def test_a_view_that_cuts_through_rows_is_refused(rows: Rows, sizes: list[int | sympy.Expr], why: str) -> None:
    with pytest.raises(LayoutMismatch, match=why):
        regroup(rows, [size(each) for each in sizes])


@pytest.mark.parametrize(
    ("layouts", "shown"),
    [
        ([SYMBOLIC, (features(12),)], "[ids[0]][ids[1]][12]"),
        ([SYMBOLIC, (same(12),)], "[ids[0]][ids[1]][12]"),
        ([SYMBOLIC, ((), token(1, T), ())], "[ids[0]][ids[1]][12]"),
        ([SYMBOLIC, (same(B), same(T), same(12))], "[ids[0]][ids[1]][12]"),
        ([(token(0, B), same(4)), (features(4),)], "[ids[0]][4]"),
        ([(token(0, B), ()), (same(4),)], "[ids[0]][=4]"),
        ([(token(0, T) + features(6),), (same(T) + features(2) + features(3),)], "[ids[0]·2·3]"),
        ([(features(4) + features(3),), (features(2) + features(6),)], "[2·2·3]"),
        ([(token(0, T), ()), (token(0, T, "other"), features(4))], "[ids[0]·other[0]][4]"),
        ([(tuple(digits(0, 6, 2, 3)),), (token(0, 6),)], "[ids[0]]"),
    ],
)
def test_operands_broadcast(layouts: list[Rows], shown: str) -> None:
    assert show(broadcast(layouts)) == shown
    assert show(broadcast(layouts[::-1])) == shown


@pytest.mark.parametrize(
    ("layouts", "position", "why"),
    [
        ([(token(0, B), token(1, 5)), (features(5),)], True, r"varies \(5 values\) along token axis ids\[1\]"),
        ([(token(0, 4),), (features(2) + features(2),)], True, r"varies \(2 values\) along token axis"),
        ([(token(0, 4), token(1, 4)), (token(0, 4),)], False, r"ids\[1\] and ids\[0\] meet in one dimension"),
        ([(token(0, T), ()), ((), token(0, T))], False, r"ids\[0\] occurs twice"),
        ([(tuple(digits(0, 6, 2, 3)),), (tuple(digits(0, 6, 3, 2)),)], False, "do not line up"),
        ([(tuple(digits(0, 4, 2, 2)),), (tuple(digits(0, 4, 2, 2)[::-1]),)], False, "meet in one dimension"),
        ([(features(6),), (features(4),)], False, "do not line up"),
        ([(features(6) + features(2),), (features(6),)], False, "differ in size"),
    ],
)
def test_operands_that_do_not_line_up_are_refused(layouts: list[Rows], position: bool, why: str) -> None:
    for order in (layouts, layouts[::-1]):
        with pytest.raises(LayoutMismatch, match=why if order is layouts else ".") as refusal:
            broadcast(order)
        assert refusal.value.position is position


def test_one_row_each_wants_every_digit_of_a_token_axis_once() -> None:
    outer, middle, inner = digits(0, 24, 2, 3, 4)
    for order in permutations([outer, middle, inner]):
        assert one_row_each(tuple((atom,) for atom in order)) == tuple((atom,) for atom in order)
    with pytest.raises(LayoutMismatch, match="is not whole"):
        one_row_each(((middle,), (inner,)))
    with pytest.raises(LayoutMismatch, match="occurs twice"):
        one_row_each(((outer,), (inner,)))
    with pytest.raises(LayoutMismatch, match="occurs twice"):
        one_row_each(((outer, middle), (inner, inner)))


def test_features_are_static_and_uniform_extents_begin_to_vary() -> None:
    with pytest.raises(LayoutMismatch, match="symbolic size T"):
        feature(T)
    assert row_local(features(4) + same(3))
    assert not row_local(same(T))
    assert not row_local(token(0, 4))
    assert varying(features(4) + same(3)) == features(4) + features(3)
    assert [axis("ids", 0, size(1)), feature(size(1)), uniform(size(1))] == [(), (), ()]


def interpret(rows: Rows) -> tuple[dict[tuple[str, int], np.ndarray], np.ndarray]:
    """What a static layout says about each element: its index along every token axis, and the number of its feature."""
    atoms = [atom for dim in rows for atom in dim]
    sizes = [int(atom.size) for atom in atoms]
    shape = [int(extent(dim)) for dim in rows]
    along: dict[tuple[str, int], np.ndarray] = {}
    number = np.zeros(sizes, int)
    for atom, index in zip(atoms, np.indices(sizes) if sizes else [], strict=True):
        if isinstance(atom, TokenAxis):
            for pair in atom.axes:
                along[pair] = along.get(pair, 0) + index * int(atom.stride)
        elif isinstance(atom, Feature):
            number = number * int(atom.size) + index
    return {pair: index.reshape(shape) for pair, index in along.items()}, number.reshape(shape)


@st.composite
def factors(draw: st.DrawFn, number: int, most: int = 4) -> list[int]:
    """An ordered factorisation of `number`."""
    found: list[int] = []
    while number > 1 and len(found) < most - 1:
        found.append(draw(st.sampled_from([each for each in range(1, number + 1) if number % each == 0])))
        number //= found[-1]
    return [*found, number]


@st.composite
def layouts(draw: st.DrawFn) -> Rows:
    """Token axes, whole or in digits, features and broadcasts, in any order and dealt to any dimensions."""
    sizes = st.sampled_from([2, 3, 4, 6])
    atoms: list[Atom] = []
    for dim, whole in enumerate(draw(st.lists(sizes, min_size=1, max_size=2))):
        atoms += [atom for atom in digits(dim, whole, *draw(factors(whole, 2))) if atom.size != 1]
    atoms += [Feature(size(each)) for each in draw(st.lists(sizes, max_size=2))]
    atoms += [Uniform(size(each)) for each in draw(st.lists(sizes, max_size=1))]
    atoms = draw(st.permutations(atoms))
    cuts = sorted(draw(st.lists(st.integers(0, len(atoms)), max_size=3)))
    return tuple(tuple(atoms[start:stop]) for start, stop in pairwise([0, *cuts, len(atoms)]))


def boundaries(sizes: list[int]) -> set[int]:
    """Strides at which the dimensions begin: products of the sizes behind."""
    return {prod(sizes[place:]) for place in range(len(sizes) + 1)}


@given(st.data())
def test_a_view_says_of_each_element_what_numpy_says(data: st.DataObject) -> None:
    rows = data.draw(layouts())
    shape = data.draw(factors(int(prod(extent(dim) for dim in rows))))
    steps = sorted(boundaries(shape) | boundaries([int(atom.size) for dim in rows for atom in dim]))
    divides = all(larger % smaller == 0 for smaller, larger in pairwise(steps))
    try:
        viewed = regroup(rows, [size(each) for each in shape])
    except LayoutMismatch:
        assert not divides
        return
    assert divides
    (before, number), (after, viewed_number) = interpret(rows), interpret(viewed)
    assert before.keys() == after.keys()
    for pair, index in before.items():
        np.testing.assert_array_equal(after[pair], index.reshape(shape))
    np.testing.assert_array_equal(viewed_number, number.reshape(shape))
    assert one_row_each(viewed) == viewed


@st.composite
def operands(draw: st.DrawFn, rows: Rows) -> Rows:
    """A layout to broadcast with `rows`: each dimension alike, dropped, varying, not varying, or from another place."""
    dims: list[Dim] = []
    for dim in rows[draw(st.integers(0, len(rows))) :]:
        number = int(extent(dim))
        swaps = [other for other in rows if extent(other) == number]
        dims.append(draw(st.sampled_from([dim, dim, (), features(number), same(number), *swaps])))
    assume(_is_layout(tuple(dims)))
    return tuple(dims)


def _is_layout(rows: Rows) -> bool:
    try:
        return one_row_each(rows) == rows
    except LayoutMismatch:
        return False


@given(st.data())
def test_a_joint_layout_knows_both_operands_of_each_element(data: st.DataObject) -> None:
    """The rows and features of the joint layout decide those of every operand: f(a, b) is a function of them."""
    one = data.draw(layouts())
    other = data.draw(operands(one))
    try:
        joint = broadcast([one, other])
    except LayoutMismatch:
        with pytest.raises(LayoutMismatch):
            broadcast([other, one])
        assert one != other
        return
    assert show(broadcast([other, one])) == show(joint)
    shape = np.broadcast_shapes(*([int(extent(dim)) for dim in rows] for rows in (one, other)))
    assert [int(extent(dim)) for dim in joint] == list(shape)
    indices, number = interpret(joint)
    keys = np.stack([number, *(indices[pair] for pair in sorted(indices))]).reshape(len(indices) + 1, -1)
    for rows in (one, other):
        own, own_number = interpret(rows)
        for pair, index in own.items():
            np.testing.assert_array_equal(np.broadcast_to(index, shape), indices[pair])
        values = np.broadcast_to(own_number, shape).reshape(1, -1)
        assert len(np.unique(np.concatenate([keys, values]), axis=1).T) == len(np.unique(keys, axis=1).T)


@given(st.data())
def test_a_dimension_joins_with_itself_and_with_what_does_not_vary(data: st.DataObject) -> None:
    for dim in data.draw(layouts()):
        assume(dim)
        merged = join_dims(dim, dim)
        assert join_dims(merged, same(int(extent(dim)))) == merged == join_dims((), merged)
        assert extent(merged) == extent(dim)
