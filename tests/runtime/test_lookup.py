"""`foldfx::lookup`: rows of a table, the exceptions of the operation it stands for, and a sound registration."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from foldfx.runtime import BOUNDS, LOOKUP, lookup

ROWS, WIDTH = 5, 3
Read = Callable[[Tensor, Tensor], Tensor]

STANDS_FOR: dict[str, Read] = {
    "embedding": lambda table, ids: functional.embedding(ids, table),
    "index": lambda table, ids: table[ids],
    "gather": lambda table, ids: table.gather(0, ids[..., None].expand(*ids.shape, WIDTH)),
}
SHAPES = ((), (1,), (4,), (0,), (2, 3), (0, 3), (2, 0), (2, 1, 3))


def table(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(ROWS * WIDTH).reshape(ROWS, WIDTH).to(dtype)


def rows_or_error(read: Callable[[], Tensor]) -> object:
    try:
        return read().tolist()
    except (IndexError, RuntimeError) as error:
        return type(error)


def test_every_bound_is_covered_here() -> None:
    assert set(STANDS_FOR) == set(BOUNDS)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("shape", [(4,), (2, 3), (), (0, 3)], ids=str)
def test_opcheck(bounds: str, shape: tuple[int, ...]) -> None:
    torch.library.opcheck(LOOKUP, (table(), torch.randint(ROWS, shape), bounds))


@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_of_the_table(bounds: str, shape: tuple[int, ...], ids: torch.dtype) -> None:
    asked = torch.randint(ROWS, shape, dtype=ids)
    rows = lookup(table(), asked, bounds)
    assert rows.shape == (*shape, WIDTH)
    expected = [[token * WIDTH + column for column in range(WIDTH)] for token in asked.flatten().tolist()]
    assert rows.reshape(-1, WIDTH).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool], ids=str)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_any_dtype(bounds: str, dtype: torch.dtype) -> None:
    rows = lookup(table(dtype), torch.tensor([4, 0]), bounds)
    assert rows.dtype == dtype
    assert torch.equal(rows, table(dtype).flip(0)[::4])


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("outside", [ROWS, ROWS + 9, -1, -ROWS, -ROWS - 1])
def test_ids_outside_do_what_the_operation_did(bounds: str, outside: int) -> None:
    ids = torch.tensor([0, outside, 2])
    assert rows_or_error(lambda: lookup(table(), ids, bounds)) == rows_or_error(lambda: STANDS_FOR[bounds](table(), ids))


def test_the_bounds_differ_from_each_other() -> None:
    """So that the test above compares three behaviours, not one."""
    ids = torch.tensor([-1])
    assert torch.equal(lookup(table(), ids, "index"), table()[-1:])
    with pytest.raises(IndexError):
        lookup(table(), ids, "embedding")
    with pytest.raises(RuntimeError) as raised:
        lookup(table(), ids, "gather")
    assert raised.type is RuntimeError


@pytest.mark.parametrize("bounds", ["", "Embedding", "clamp"])
def test_unknown_bounds_are_refused(bounds: str) -> None:
    with pytest.raises(ValueError, match="bounds must be one of"):
        lookup(table(), torch.tensor([0]), bounds)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_rows_have_memory_of_their_own(bounds: str) -> None:
    stored = table()
    lookup(stored, torch.tensor([0, 1]), bounds).zero_()
    assert torch.equal(stored, table())


@pytest.mark.parametrize("bounds", BOUNDS)
def test_strided_operands(bounds: str) -> None:
    ids, wide = torch.randint(ROWS, (4, 6))[:, ::2], torch.randn(WIDTH, 2 * ROWS).t()[::2]
    assert torch.equal(lookup(wide, ids, bounds), wide[ids])
