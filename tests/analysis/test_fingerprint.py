"""Digests: the same for the same elements however they lie in memory, other ones for any other bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from foldfx.analysis import fingerprint
from foldfx.analysis.fingerprint import Digests, changes, marks_of

BASE = 24 * 20

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "every other column": lambda x: x[:, ::2],
    "some rows": lambda x: x[3:7],
    "one row at the front": lambda x: x[None, ::3],
    "expanded": lambda x: x[:1].expand(9, -1),
    "channels last": lambda x: x.reshape(2, 3, 8, 10).to(memory_format=torch.channels_last),
    "a number": lambda x: x[1, 1],
    "empty": lambda x: x[:0],
}
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
)


def digest(tensor: Tensor) -> str:
    return Digests().of(tensor)


def bytes_of(tensor: Tensor) -> bytes:
    """The elements' bytes in logical order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_the_digest_is_that_of_the_bytes_in_logical_order(
    view: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = VIEWS[view](torch.randint(0, 2, (24, 20)).to(dtype))
    expected = hashlib.sha256(bytes_of(tensor)).hexdigest()
    for block in (fingerprint.BLOCK, 100, 7 * tensor.element_size()):
        monkeypatch.setattr(fingerprint, "BLOCK", block)
        assert digest(tensor) == expected


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_larger_than_a_block_is_copied(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "BLOCK", 64)
    tensor = VIEWS[view](torch.randn(24, 20))
    for part in fingerprint._blocks(tensor):
        assert part.is_contiguous() or part.numel() * part.element_size() <= 64


def test_negated_and_conjugated_views_are_read_as_what_they_are() -> None:
    imaginary = torch.randn(5, 4, dtype=torch.complex64).conj().imag
    assert imaginary.is_neg()
    assert digest(imaginary) == digest(imaginary.clone()) != digest(imaginary.abs() + 1)
    conjugated = torch.randn(3, dtype=torch.complex64).conj()
    assert digest(conjugated) == digest(conjugated.resolve_conj()) != digest(conjugated.conj())


@pytest.mark.parametrize("place", [0, 17, BASE - 1])
def test_one_bit_counts(place: int) -> None:
    tensor = torch.zeros(24, 20)
    before = digest(tensor)
    tensor.view(-1)[place] = -0.0
    assert digest(tensor) != before
    tensor.view(-1)[place] = 0.0
    assert digest(tensor) == before


def test_contents_that_cannot_be_read_have_no_digest() -> None:
    assert digest(torch.empty(3, device="meta")) == digest(torch.eye(3).to_sparse()) == ""


def test_the_same_view_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Tensor] = []
    inner = fingerprint._digest
    monkeypatch.setattr(fingerprint, "_digest", lambda tensor: read.append(tensor) or inner(tensor))  # type: ignore[func-returns-value]
    tied, other = torch.randn(4, 3), torch.randn(4, 3)
    digests = Digests()
    marks = marks_of({"embedding": tied, "head": tied.view(4, 3), "other": other, "row": tied[0]}, digests)
    changes(marks, {"embedding": tied, "head": tied, "other": other, "row": tied[0]}, digests)
    assert len(read) == 3
    assert marks["embedding"] == marks["head"] != marks["other"]


def test_changes_are_named_and_strides_kept_apart() -> None:
    names = ("kept", "edited", "cast", "cut", "moved", "laid out", "lost", "written")
    before = {name: torch.arange(6.0).reshape(2, 3) for name in names}
    marks = marks_of(before, Digests(), {"written"})
    now = {
        "kept": before["kept"].clone(),
        "edited": before["edited"] + 1,
        "cast": before["cast"].half(),
        "cut": before["cut"][:1],
        "moved": before["moved"].to("meta"),
        "laid out": before["laid out"].t().contiguous().t(),
        "written": before["written"] + 1,
        "found": torch.zeros(1),
    }
    contents, strides = changes(marks, now, Digests())
    assert contents == [
        "lost: gone",
        "found: was not there",
        "edited: contents",
        "cast: dtype torch.float16, was torch.float32",
        "cut: shape [1, 3], was [2, 3]",
        "moved: device meta, was cpu",
    ]
    assert strides == ["laid out: strides (1, 2), were (3, 1)"]
