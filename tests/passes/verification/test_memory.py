"""Which tensors stand on the same bytes: by address, whatever the strides and whoever owns the storage."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from foldfx.passes.verification.memory import STATE, shared_memory
from foldfx.runtime.overlap import overlap


def addresses(tensor: Tensor) -> set[int]:
    """The address of every byte of every element."""
    size = tensor.element_size()
    starts = {
        tensor.data_ptr() + size * sum(place * stride for place, stride in zip(index, tensor.stride(), strict=True))
        for index in product(*map(range, tensor.shape))
    }
    return {start + byte for start in starts for byte in range(size)}


BASE = torch.arange(24, dtype=torch.float32).reshape(4, 6)
ARRAY = np.arange(12, dtype=np.float32)
PAIRS: dict[str, tuple[Tensor, Tensor, bool]] = {
    "itself": (BASE, BASE, True),
    "a copy": (BASE, BASE.clone(), False),
    "a view": (BASE, BASE.view(-1), True),
    "a transposed one": (BASE.t(), BASE, True),
    "even and odd columns": (BASE[:, ::2], BASE[:, 1::2], False),
    "even rows and odd columns": (BASE[::2], BASE[:, 1::2], True),
    "left and right halves": (BASE[:, :3], BASE[:, 3:], False),
    "halves with a column in common": (BASE[:, :4], BASE[:, 3:], True),
    "upper and lower rows": (BASE[:2], BASE[2:], False),
    "a diagonal and what is above it": (BASE.as_strided((4,), (7,)), BASE.as_strided((4,), (7,), 1), False),
    "two diagonals that cross": (BASE.as_strided((4,), (7,)), BASE.as_strided((4,), (5,), 0), True),
    "one element of each": (BASE[1, 2], BASE[1, 2], True),
    "elements side by side": (BASE[1, 2], BASE[1, 3], False),
    "without elements": (BASE[:0], BASE, False),
    "without elements in the middle": (BASE[2:2, 1:3], BASE[2:3], False),
    "nothing and nothing": (torch.empty(0), torch.empty(0), False),
    "one column expanded": (BASE[:, :1].expand(4, 5), BASE[:, 0], True),
    "one column expanded, and another": (BASE[:, :1].expand(4, 5), BASE[:, 1], False),
    "one number expanded": (BASE[3, 5].expand(2, 2), BASE[3], True),
    "windows of one line": (BASE.view(-1).unfold(0, 3, 1), BASE.view(-1)[23:], True),
    "other dtypes on the same bytes": (BASE, BASE.view(torch.uint8), True),
    "a byte between others": (BASE.view(torch.uint8).view(-1)[2::4], BASE.view(torch.uint8).view(-1)[3::4], False),
    "a byte within a number": (BASE.view(torch.uint8).view(-1)[7:8], BASE[0, 1], True),
    "an array through two storages": (torch.from_numpy(ARRAY), torch.from_numpy(ARRAY), True),
    "parts of an array": (torch.from_numpy(ARRAY[:6]), torch.from_numpy(ARRAY[6:]), False),
    "parts of an array that overlap": (torch.from_numpy(ARRAY[:7]), torch.from_numpy(ARRAY[6:]), True),
    "interleaved parts of an array": (torch.from_numpy(ARRAY[::2]), torch.from_numpy(ARRAY[1::2]), False),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_tensors_overlap_where_an_element_has_a_byte_of_both(pair: str) -> None:
    one, other, expected = PAIRS[pair]
    assert overlap(one, other) == overlap(other, one) == expected == bool(addresses(one) & addresses(other))


def test_the_array_pairs_have_storages_of_their_own() -> None:
    one, other, _ = PAIRS["parts of an array that overlap"]
    assert one.untyped_storage()._cdata != other.untyped_storage()._cdata
    assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


def test_devices_have_addresses_of_their_own() -> None:
    assert not overlap(torch.zeros(3), torch.zeros(3, device="meta"))


LINE = torch.zeros(64, dtype=torch.int16)
BYTES = LINE.view(torch.uint8)


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    """Any strided view of one allocation, in elements of one or two bytes; some without elements, some expanded."""
    base = draw(st.sampled_from([LINE, BYTES]))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = draw(st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)))
    extent = sum(max(size - 1, 0) * stride for size, stride in zip(shape, strides, strict=True))
    return base.as_strided(shape, strides, draw(st.integers(0, base.numel() - 1 - extent)))


@given(views(), views())
def test_overlap_is_what_the_addresses_say(one: Tensor, other: Tensor) -> None:
    assert overlap(one, other) == bool(addresses(one) & addresses(other))


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 4))
        self.register_buffer("seen", torch.zeros(5))


NONE = nn.Module()


@given(st.lists(views(), max_size=4), st.lists(views(), max_size=3))
def test_pairs_are_those_that_overlap(outputs: list[Tensor], inputs: list[Tensor]) -> None:
    found = shared_memory(outputs, inputs, NONE)
    among = {
        (f"output [{place}]", f"output [{later}]")
        for later in range(len(outputs))
        for place in range(later)
        if addresses(outputs[place]) & addresses(outputs[later])
    }
    with_inputs = {
        (f"output [{place}]", f"input [{given}]")
        for place, one in enumerate(outputs)
        for given, other in enumerate(inputs)
        if addresses(one) & addresses(other)
    }
    assert found == among | with_inputs


def test_outputs_inputs_and_state_are_named() -> None:
    holder, given_, made = Holder(), torch.zeros(2, 3), torch.zeros(6)
    outputs = {
        "a": made[:4],
        "b": made[3:],
        "c": given_.t(),
        "d": (holder.weight[1], holder.seen[:1]),
        "e": torch.ones(2),
        "f": 3,
    }
    assert shared_memory(outputs, ((given_,), {"other": torch.zeros(2)}), holder) == {
        ("output ['a']", "output ['b']"),
        ("output ['c']", "input [0][0]"),
        ("output ['d'][0]", STATE),
        ("output ['d'][1]", STATE),
    }


def test_inputs_and_state_that_overlap_among_themselves_are_not_outputs() -> None:
    holder, given_ = Holder(), torch.zeros(3)
    holder.register_buffer("again", holder.seen)
    assert shared_memory(torch.zeros(1), (given_, given_, holder.seen), holder) == frozenset()


def test_one_output_returned_twice_shares_memory_with_itself() -> None:
    made = torch.zeros(2)
    assert shared_memory((made, made, None), (), NONE) == {("output [0]", "output [1]")}


def test_a_large_tensor_does_not_hide_behind_smaller_ones() -> None:
    """Outputs in between begin later and end earlier than the one they all lie in."""
    line = torch.zeros(40)
    parts = [line, line[2:4], line[10:12], line[30:]]
    assert shared_memory(parts, (), NONE) == {("output [0]", f"output [{place}]") for place in (1, 2, 3)}


def test_what_has_no_strided_memory_shares_none() -> None:
    sparse = torch.eye(3).to_sparse()
    assert shared_memory((sparse, sparse, torch.zeros(2, device="meta")), (sparse,), NONE) == frozenset()
