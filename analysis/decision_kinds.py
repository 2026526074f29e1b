"""The operations that make floats discrete, and for each how far its operands are from another outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .rules.table import Overload

aten = torch.ops.aten

Arguments = Mapping[str, Any]
"""An operation's arguments by schema name, float tensors as float64."""

Margin = Callable[[Arguments], torch.Tensor]
"""The distance of each decision from another outcome, in units of the score; 0 is a tie, infinite: no other outcome."""


@dataclass(frozen=True)
class Kind:
    """What an operation decides.

    Attributes:
        name: "top-k", "argmax", "order", "sort", "comparison", "rounding", "cast", "buckets", "bits" or "draw".
        margin: None where foldfx defines none.
        scores: the operands that may be the score, by schema name.
        chooses: it chooses along the dimension `dim`: margins have the score's shape without it.
        per_score: margins have the score's shape, rather than that of the result.
        wide: bfloat16 and float16 are computed in float32, see `promotion.promoted`.
    """

    name: str
    margin: Margin | None
    scores: tuple[str, ...] = ("self",)
    chooses: bool = False
    per_score: bool = False
    wide: bool = False


def _apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Their distance; 0 for two equal infinities."""
    return torch.where(one == other, 0.0, (one - other).abs())


def _among(arguments: Arguments) -> torch.Tensor:
    """The score with what is chosen from last."""
    score, dim = arguments["self"], arguments["dim"]
    moved: torch.Tensor = score.reshape(-1) if dim is None or not score.dim() else score.movedim(int(dim), -1)
    return moved


def _least(distances: torch.Tensor) -> torch.Tensor:
    """Along the last dimension; infinite where there are none."""
    return distances.amin(-1) if distances.shape[-1] else distances.new_full(distances.shape[:-1], torch.inf)


def _gaps(ordered: torch.Tensor) -> torch.Tensor:
    """The distances of neighbours, one fewer than there are values."""
    return _apart(ordered[..., 1:], ordered[..., :-1])


def _best(score: torch.Tensor, k: int, largest: bool) -> torch.Tensor:
    """The gaps among the k best and the next one."""
    return _gaps(score.topk(min(k + 1, score.shape[-1]), -1, largest).values)


def _top_k(arguments: Arguments) -> torch.Tensor:
    k = int(arguments["k"])
    return _least(_best(_among(arguments), k, bool(arguments["largest"]))[..., max(k - 1, 0) : k])


def rank_margin(arguments: Arguments) -> torch.Tensor:
    """Of a top-k, the distance from another choice or another order of the same."""
    k = int(arguments["k"])
    return _least(_best(_among(arguments), k, bool(arguments["largest"]))[..., :k])


def _extreme(largest: bool) -> Margin:
    return lambda arguments: _least(_best(_among(arguments), 1, largest))


def _running(largest: bool) -> Margin:
    def margin(arguments: Arguments) -> torch.Tensor:
        score = _among(arguments)
        best = (score.cummax(-1) if largest else score.cummin(-1)).values
        return _least(_apart(score[..., 1:], best[..., :-1]))

    return margin


def _sorted(arguments: Arguments) -> torch.Tensor:
    return _least(_gaps(_among(arguments).sort(-1).values))


def _at_rank(arguments: Arguments) -> torch.Tensor:
    """Of the k-th smallest, or of the lower median, the distance to the nearer neighbour."""
    gaps = _gaps(_among(arguments).sort(-1).values)
    place = int(arguments["k"]) - 1 if "k" in arguments else gaps.shape[-1] // 2
    return _least(gaps[..., max(place - 1, 0) : place + 1])


def _compared(arguments: Arguments) -> torch.Tensor:
    one, other = (torch.as_tensor(arguments[name], dtype=torch.float64) for name in ("self", "other"))
    return _apart(one, other)


def _nearly_equal(arguments: Arguments) -> torch.Tensor:
    one, other = arguments["self"].double(), arguments["other"].double()
    distance: torch.Tensor = ((one - other).abs() - arguments["atol"] - arguments["rtol"] * other.abs()).abs()
    return distance


def _from_zero(arguments: Arguments) -> torch.Tensor:
    distance: torch.Tensor = arguments["self"].abs()
    return distance


def _one_from_zero(name: str, beside: str) -> Margin:
    """Of one of two operands that are broadcast together."""
    return lambda arguments: arguments[name].abs() + torch.zeros_like(arguments[beside])


def _either_from_zero(arguments: Arguments) -> torch.Tensor:
    """Of two operands that are true where they are not 0; what is no float is exact."""
    one, other = (
        each.abs() if each.is_floating_point() else torch.full(each.shape, torch.inf, dtype=torch.float64)
        for each in (arguments["self"], arguments["other"])
    )
    return torch.minimum(one, other)


def _from_threshold(arguments: Arguments) -> torch.Tensor:
    return _apart(arguments["self"], torch.as_tensor(arguments["threshold"], dtype=torch.float64))


def _to_integer(score: torch.Tensor) -> torch.Tensor:
    return (score - score.round()).abs()


def _to_step(score: torch.Tensor) -> torch.Tensor:
    """Of rounding towards zero: the integers next to zero, but not zero itself, are thresholds."""
    nearest = score.round()
    return torch.where(nearest == 0, 1 - score.abs(), (score - nearest).abs())


def _floor(arguments: Arguments) -> torch.Tensor:
    return _to_integer(arguments["self"])


def _truncated(arguments: Arguments) -> torch.Tensor:
    return _to_step(arguments["self"])


def _rounded(arguments: Arguments) -> torch.Tensor:
    scale = 10.0 ** int(arguments.get("decimals", 0))
    scaled = arguments["self"] * scale
    distance: torch.Tensor = ((scaled - scaled.floor()) - 0.5).abs() / scale
    return distance


def _quotient(nearest: Callable[[torch.Tensor], torch.Tensor]) -> Margin:
    """Of a quotient rounded to an integer, in units of the dividend."""

    def margin(arguments: Arguments) -> torch.Tensor:
        dividend, divisor = (torch.as_tensor(arguments[name], dtype=torch.float64) for name in ("self", "other"))
        return nearest(dividend / divisor) * divisor.abs()

    return margin


_floored, _cut = _quotient(_to_integer), _quotient(_to_step)


def _divided(arguments: Arguments) -> torch.Tensor:
    return (_floored if arguments["rounding_mode"] == "floor" else _cut)(arguments)


def _cast(arguments: Arguments) -> torch.Tensor:
    return _from_zero(arguments) if arguments["dtype"] is torch.bool else _truncated(arguments)


def _buckets(arguments: Arguments) -> torch.Tensor:
    edges = (arguments["boundaries"] if "boundaries" in arguments else arguments["sorted_sequence"]).double()
    score = torch.as_tensor(arguments["self"], dtype=torch.float64)
    return _least(_apart(score.unsqueeze(-1), edges if edges.dim() == 1 else edges.unsqueeze(-2)))


def _member(arguments: Arguments) -> torch.Tensor:
    among = torch.as_tensor(arguments.get("test_elements", arguments.get("test_element")), dtype=torch.float64)
    return _least(_apart(arguments["elements"].unsqueeze(-1), among.reshape(-1)))


CASTS = (aten._to_copy.default, aten.to.dtype, aten.type_as.default)
"""They decide only where they make no float of a float. Their margin needs the result's dtype, as the argument `dtype`."""

DIVISIONS = (aten.div.Tensor_mode, aten.div.Scalar_mode, aten.divide.Tensor_mode, aten.divide.Scalar_mode)
"""They decide only where they round."""

_BOTH = ("self", "other")
_COMPARED = Kind("comparison", _compared, _BOTH)
_TRUE = Kind("comparison", _from_zero, per_score=True)


def _kinds(kind: Kind, *overloads: Overload) -> dict[Overload, Kind]:
    return dict.fromkeys(overloads, kind)


def _both_forms(kind: Kind, *names: str) -> dict[Overload, Kind]:
    return {getattr(getattr(aten, name), form): kind for name in names for form in ("Tensor", "Scalar")}


KINDS: dict[Overload, Kind] = {
    **_kinds(Kind("top-k", _top_k, chooses=True), aten.topk.default),
    **_kinds(Kind("argmax", _extreme(True), chooses=True), aten.argmax.default, aten.max.dim),
    **_kinds(Kind("argmax", _extreme(False), chooses=True), aten.argmin.default, aten.min.dim),
    **_kinds(Kind("argmax", _running(True), chooses=True), aten.cummax.default),
    **_kinds(Kind("argmax", _running(False), chooses=True), aten.cummin.default),
    **_kinds(Kind("argmax", None), aten.max_pool1d_with_indices.default, aten.max_pool2d_with_indices.default),
    **_kinds(Kind("argmax", None), aten.max_pool3d_with_indices.default, aten.adaptive_max_pool1d.default),
    **_kinds(Kind("argmax", None), aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default),
    **_kinds(Kind("order", _at_rank, chooses=True), aten.kthvalue.default, aten.median.dim),
    **_kinds(Kind("order", None), aten.nanmedian.dim, aten.mode.default),
    **_kinds(Kind("sort", _sorted, chooses=True), aten.sort.default, aten.sort.stable),
    **_kinds(Kind("sort", _sorted, chooses=True), aten.argsort.default, aten.argsort.stable),
    **_both_forms(_COMPARED, "gt", "ge", "lt", "le", "eq", "ne"),
    **_both_forms(_COMPARED, "greater", "greater_equal", "less", "less_equal", "not_equal"),
    **_kinds(Kind("comparison", _nearly_equal, _BOTH), aten.isclose.default),
    **_kinds(Kind("comparison", _from_threshold, wide=True), aten.threshold.default),
    **_kinds(Kind("comparison", _either_from_zero, _BOTH), aten.logical_and.default, aten.logical_or.default),
    **_kinds(Kind("comparison", _either_from_zero, _BOTH), aten.logical_xor.default),
    **_kinds(_TRUE, aten.logical_not.default, aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim),
    **_kinds(_TRUE, aten.all.dims, aten.count_nonzero.default, aten.count_nonzero.dim_IntList, aten.nonzero_static.default),
    **_kinds(_TRUE, aten.nonzero.default, aten.nonzero_numpy.default, aten.argwhere.default),
    **_kinds(Kind("comparison", _one_from_zero("condition", "condition"), ("condition",)), aten.where.default),
    **_kinds(Kind("rounding", _floor), aten.floor.default, aten.ceil.default),
    **_kinds(Kind("rounding", _rounded), aten.round.default, aten.round.decimals),
    **_kinds(Kind("rounding", _truncated), aten.trunc.default, aten.fix.default, aten.frac.default),
    **_kinds(Kind("rounding", _from_zero), aten.sign.default, aten.sgn.default, aten.signbit.default),
    **_kinds(Kind("rounding", _one_from_zero("self", "values")), aten.heaviside.default),
    **_kinds(Kind("rounding", _one_from_zero("other", "self"), ("other",)), aten.copysign.Tensor),
    **_kinds(Kind("rounding", _floored, _BOTH, wide=True), aten.floor_divide.default, aten.floor_divide.Scalar),
    **_kinds(Kind("rounding", _floored, _BOTH), aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor),
    **_kinds(Kind("rounding", _cut, _BOTH), aten.fmod.Tensor, aten.fmod.Scalar),
    **_kinds(Kind("rounding", _divided, _BOTH, wide=True), *DIVISIONS),
    **_kinds(Kind("cast", _cast), *CASTS),
    **_kinds(Kind("buckets", _buckets), aten.bucketize.Tensor, aten.searchsorted.Tensor),
    **_kinds(Kind("buckets", _buckets, ("boundaries", "sorted_sequence")), aten.bucketize.Scalar, aten.searchsorted.Scalar),
    **_kinds(Kind("buckets", None), aten.histc.default),
    **_kinds(Kind("comparison", _member, ("elements",)), aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar),
    **_kinds(Kind("bits", None), aten.view.dtype, aten.frexp.Tensor),
    **_kinds(Kind("draw", None), aten.multinomial.default, aten.bernoulli.default),
    **_kinds(Kind("draw", None, ("p",)), aten.bernoulli.Tensor),
}
"""What decides, if its score is a float."""
