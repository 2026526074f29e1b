"""The input check at the head of a program."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, Proxy

from foldfx.errors import CallError, FoldfxError, GradientsError, TokenRankError, TrainingModeError
from foldfx.runtime import InputGuards


class Sizes(nn.Module):
    """Stands for export's guards: remembers what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[object, ...]] = []

    def forward(self, *inputs: object) -> None:
        self.seen.append(inputs)


def test_admitted_ranks_go_on_to_the_size_guards() -> None:
    sizes = Sizes()
    guards = InputGuards(sizes, {"ids": (1, frozenset({0, 2}))})
    for ids in (torch.tensor(3), torch.zeros(2, 2)):
        guards(7, ids)
        assert sizes.seen[-1] == (7, ids)
    assert not guards.training


@pytest.mark.parametrize("shape", [(3,), (1, 1, 1)])
def test_other_ranks_are_refused_before_anything_else(shape: tuple[int, ...]) -> None:
    sizes = Sizes()
    guards = InputGuards(sizes, {"ids": (1, frozenset({0, 2}))})
    with pytest.raises(TokenRankError, match=rf"token input ids has {len(shape)} dimensions.*\[0, 2\]") as raised:
        guards(7, torch.zeros(shape))
    assert isinstance(raised.value, FoldfxError | ValueError)
    assert sizes.seen == []


def test_every_token_input_is_checked() -> None:
    guards = InputGuards(Sizes(), {"words": (0, frozenset({1})), "tags": (1, frozenset({2}))})
    guards(torch.zeros(1), torch.zeros(1, 1))
    with pytest.raises(TokenRankError, match="token input tags"):
        guards(torch.zeros(1), torch.zeros(1))
    with pytest.raises(TokenRankError, match="token input words"):
        guards(torch.zeros(1, 1), torch.zeros(1, 1))


def test_inputs_that_were_none_stay_so() -> None:
    guards = InputGuards(Sizes(), {}, absent=[("mask", 1)])
    guards(torch.zeros(1), None)
    with pytest.raises(AssertionError, match="input mask was None when this program was captured"):
        guards(torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize(("shape", "admitted"), [((2, 1), True), ((1, 2), False), ((0, 2), False), ((1,), True)])
def test_sizes_below_the_captured_ones_are_refused(shape: tuple[int, ...], admitted: bool) -> None:
    """In the rank they were captured in; another rank that was verified has other dimensions."""
    guards = InputGuards(Sizes(), {}, least=[("words", 0, 2, 0, 2)])
    if admitted:
        guards(torch.zeros(shape))
        return
    with pytest.raises(AssertionError, match=rf"input words has size {shape[0]} in dimension 0; .* sizes from 2 on"):
        guards(torch.zeros(shape))


def test_training_mode_is_refused() -> None:
    guards = InputGuards(Sizes(), {})
    guards(torch.zeros(1))
    with pytest.raises(TrainingModeError, match=r"call \.eval\(\) on it"):
        guards.train()(torch.zeros(1))


def test_gradients_are_refused_where_they_make_a_difference() -> None:
    guards = InputGuards(Sizes(), {}, gradients="output [0]: shape [3]")
    with pytest.raises(GradientsError, match=r"gradients are on, .*output \[0\]: shape \[3\].*under torch.no_grad\(\)"):
        guards(torch.zeros(1))
    with torch.no_grad():
        guards(torch.zeros(1))
    InputGuards(Sizes(), {})(torch.zeros(1))


def test_dtypes_that_are_not_admitted_are_refused() -> None:
    kinds = {"mask": (0, frozenset({torch.bool, torch.float32}))}
    guards = InputGuards(Sizes(), {}, kinds=kinds)
    for dtype in (torch.bool, torch.float32):
        guards(torch.zeros(1, dtype=dtype))
    for other in (torch.zeros(1, 1, dtype=torch.int64), 1.0, None):
        with pytest.raises(CallError, match=r"verified for \['torch.bool', 'torch.float32'\]"):
            guards(other)


def test_proxies_pass() -> None:
    kinds = {"mask": (0, frozenset({torch.bool}))}
    sizes = Sizes()
    proxy = Proxy(Graph().placeholder("mask"))
    InputGuards(sizes, {}, kinds=kinds, contiguous=[("mask", 0, True)], together=[(1,)])(proxy)
    assert sizes.seen == [(proxy,)]


def test_what_is_written_stands_apart() -> None:
    guards = InputGuards(Sizes(), {}, apart=[("cache", 1, "key", 0)])
    line = torch.zeros(6)
    guards(line[::2], line[1::2])
    with pytest.raises(CallError, match="input cache, which is written, shares memory with input key"):
        guards(line[:3], line[2:])
    with FakeTensorMode():
        guards(torch.zeros(3), torch.zeros(3))


@pytest.mark.parametrize("whether", [True, False])
def test_layouts_that_are_not_admitted_are_refused(whether: bool) -> None:
    guards = InputGuards(Sizes(), {}, contiguous=[("hidden", 0, whether)])
    layouts = {True: torch.zeros(2, 3), False: torch.zeros(3, 2).mT}
    guards(layouts[whether])
    with pytest.raises(CallError, match=f"input hidden {'is not' if whether else 'is'} contiguous"):
        guards(layouts[not whether])


def test_numbers_of_dimensions_are_admitted_together() -> None:
    guards = InputGuards(Sizes(), {}, together=[(1, 2), (2, 3)])
    guards(torch.zeros(1), torch.zeros(1, 1))
    guards(torch.zeros(1, 1), torch.zeros(1, 1, 1))
    for other, found in ((torch.zeros(1, 1, 1), 3), (1.0, 0)):
        with pytest.raises(CallError, match=rf"the inputs have \(1, {found}\) dimensions.*\[\(1, 2\), \(2, 3\)\]"):
            guards(torch.zeros(1), other)
