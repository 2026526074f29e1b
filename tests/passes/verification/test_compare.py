"""Every kind of difference between two outputs is seen, and nothing else is."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import foldfx
from foldfx.passes import Figures, Limits
from foldfx.passes.verification.compare import Comparison, compare_trees
from foldfx.passes.verification.figures import exceeds, figures_of

NAN, INF = math.nan, math.inf


def compare(reference: Any, candidate: Any, limits: Limits | None = None) -> Comparison:
    return compare_trees(reference, candidate, limits or Limits(), "output ")


def floats(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("reference", "candidate", "message"),
    [
        pytest.param((1.0,), [1.0], "structure", id="tuple and list"),
        pytest.param({"a": 1}, {"b": 1}, "structure", id="keys"),
        pytest.param((floats(1), floats(2)), (floats(1),), "structure", id="a leaf less"),
        pytest.param(floats(1), floats(1, dtype=torch.float64), "dtype torch.float64 instead of torch.float32", id="dtype"),
        pytest.param(floats(1), floats(1).long(), "dtype torch.int64 instead of torch.float32", id="discrete"),
        pytest.param(floats(1), floats(1)[None], r"shape torch.Size\(\[1, 1\]\) instead of torch.Size\(\[1\]\)", id="shape"),
        pytest.param(floats(), floats()[None], "shape", id="shape without elements"),
        pytest.param(floats(1), torch.empty(1, device="meta"), "device meta instead of cpu", id="device"),
        pytest.param(floats(1, 2), floats(1, 2.1), "max-abs 1.000e-01 exceeds 1e-05", id="value"),
        pytest.param(floats(1e-4, 0), floats(1e-4, 5e-6), "relative L2 5.000e-02 exceeds 1e-05", id="relative"),
        pytest.param(floats(1, NAN), floats(NAN, 1), "max-abs inf", id="NaN moved"),
        pytest.param(floats(1, NAN), floats(1, 1), "max-abs inf", id="NaN gone"),
        pytest.param(floats(1, 1), floats(1, NAN), "max-abs inf", id="NaN came"),
        pytest.param(floats(1, INF), floats(1, 1), "max-abs inf", id="infinity gone"),
        pytest.param(floats(1, 1), floats(1, INF), "max-abs inf", id="infinity came"),
        pytest.param(floats(INF), floats(-INF), "max-abs inf", id="infinity's sign"),
        pytest.param(floats(INF), floats(NAN), "max-abs inf", id="infinity turned NaN"),
        pytest.param(torch.tensor([1, 2]), torch.tensor([1, 3]), "torch.int64 values differ, by up to 1", id="int off by one"),
        pytest.param(torch.tensor([True]), torch.tensor([False]), "torch.bool values differ", id="bool"),
        pytest.param(1, 2, "2 instead of 1", id="number"),
        pytest.param(1, 1.0, "float instead of int", id="int and float"),
        pytest.param(1, True, "bool instead of int", id="int and bool"),
        pytest.param(0.0, -0.0, "-0.0 instead of 0.0", id="sign of a number"),
        pytest.param("a", "b", "'b' instead of 'a'", id="text"),
        pytest.param(floats(1), 1.0, "float instead of Tensor", id="tensor and number"),
        pytest.param(None, floats(1), "structure|Tensor instead of NoneType", id="none and tensor"),
    ],
)
def test_a_difference_is_seen(reference: Any, candidate: Any, message: str) -> None:
    found = compare({"x": [reference]}, {"x": [candidate]})
    assert not found.agree
    assert len(found.differences) == 1
    assert re.search(message, str(found.differences[0]))
    assert not found.figures.bitwise


@pytest.mark.parametrize(
    "tree",
    [(floats(1, NAN, INF, -INF, -0.0),), {"a": [torch.tensor([1, 2])]}, 1, 1.0, True, None, NAN, floats(), torch.eye(2).t()],
    ids=repr,
)
def test_a_tree_agrees_with_itself(tree: Any) -> None:
    assert compare(tree, tree) == Comparison((), Figures())


def test_every_leaf_that_differs_is_named() -> None:
    tree = {"a": floats(1), "b": [floats(2), floats(3)]}
    found = compare(tree, {"a": floats(2), "b": [floats(2), floats(4)]})
    assert [each.where for each in found.differences] == ["output ['a']", "output ['b'][1]"]


def test_a_zero_of_the_other_sign_counts_where_rounding_does_not_explain_it() -> None:
    found = compare(floats(0.0, 1.0), floats(-0.0, 1.0))
    assert str(found.differences[0]).endswith(
        "1 zero(s) of the other sign, all values equal otherwise, -0.0 instead of 0.0 at [0]"
    )
    assert found.figures == Figures(max_abs=0, relative_l2=0, exact=True, bitwise=False)
    assert compare(floats(0.0, 1.0), floats(-0.0, 1.000001)).agree


def test_exact_and_bitwise_are_told_apart() -> None:
    quiet, other = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32).split(1)
    assert figures_of(quiet, other) == Figures(exact=True, bitwise=False)
    assert figures_of(quiet, quiet.clone()) == Figures()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_limits_hold_by_dtype(dtype: torch.dtype) -> None:
    limits = Limits()
    limit = limits.max_abs[dtype]
    assert exceeds(Figures(limit, 0, False, False), dtype, limits) == ""
    assert "max-abs" in exceeds(Figures(1.01 * limit, 0, False, False), dtype, limits)
    assert "relative L2" in exceeds(Figures(0, 1.01 * limits.relative_l2[dtype], False, False), dtype, limits)
    assert "max-abs" in exceeds(Figures(NAN, NAN, False, False), dtype, limits)


def test_a_float_dtype_without_a_limit_must_be_exact() -> None:
    limits = Limits({torch.float32: 1.0}, {torch.float32: 1.0})
    double = floats(1, dtype=torch.float64)
    assert compare(double, double.clone(), limits).agree
    assert not compare(double, double + 1e-15, limits).agree
    assert compare(floats(1), floats(1.5), limits).agree


def test_a_float8_difference_is_seen_and_equality_too() -> None:
    one, other = (floats(*values).to(torch.float8_e4m3fn) for values in ((1, 2), (2, 1)))
    assert compare(one, one.clone()).agree
    assert not compare(one, other).agree


def test_figures_against_numbers_worked_out_by_hand() -> None:
    figures = figures_of(floats(3, 4), floats(3, 4.5))
    assert (figures.max_abs, figures.relative_l2, figures.exact) == (0.5, 0.1, False)
    assert figures_of(floats(0, 0), floats(0, 3e-12)).relative_l2 == pytest.approx(3)
    assert figures.worst(Figures(0.7, 0.05, True, True)) == Figures(0.7, 0.1, False, False)


def test_strides_do_not_count() -> None:
    value = torch.randn(3, 4)
    assert figures_of(value, value.t().contiguous().t()) == Figures()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"max_abs": {torch.float32: NAN}}, ValueError, r"max_abs for torch.float32 must be 0 or more, got nan"),
        ({"relative_l2": {torch.float32: -1.0}}, ValueError, r"relative_l2 for torch.float32 must be 0 or more, got -1"),
        ({"wide_factor": NAN}, ValueError, r"wide_factor must be 0 or more, got nan"),
        ({"relative_l2": {torch.float32: 1.0}}, ValueError, r"max_abs has torch.float64, .*relative_l2 has not; give both"),
        ({"max_abs": 1e-3}, TypeError, r"max_abs is 0.001; pass a limit for each dtype"),
        ({"max_abs": {"float32": 1e-3}}, TypeError, r"max_abs is \{'float32': 0.001\}; pass a limit for each dtype"),
    ],
)
def test_limits_that_limit_nothing_are_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Limits(**given)


def test_limits_are_limits() -> None:
    with pytest.raises(TypeError, match=r"limits is 0.001; pass foldfx.Limits"):
        foldfx.Pipeline(limits=1e-3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"limits is 0.001; pass foldfx.Limits"):
        foldfx.verify(torch.nn.Identity(), torch.nn.Identity(), [], limits=1e-3)  # type: ignore[arg-type]
