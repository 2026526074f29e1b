"""Numerical settings: each that is changed is named, and one set to what it was is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from foldfx.passes.verification.settings import changed_settings, numerical_settings


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)
    torch.set_flush_denormal(False)
    torch.set_default_dtype(torch.float32)
    torch.backends.mha.set_fastpath_enabled(True)


def set_mkldnn(precision: str) -> None:
    torch.backends.mkldnn.matmul.fp32_precision = precision


CHANGES: dict[str, tuple[Callable[[], Any], str]] = {
    "threads": (lambda: torch.set_num_threads(2), "threads: 2, was 1"),
    "precision": (lambda: torch.set_float32_matmul_precision("high"), "float32 matmul precision: high, was highest"),
    "new interface": (lambda: set_mkldnn("bf16"), "torch.backends.mkldnn.matmul.fp32_precision: bf16, was ieee"),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True), "deterministic algorithms: on, was off"),
    "only warned": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        "deterministic algorithms: warn, was off",
    ),
    "denormals": (lambda: torch.set_flush_denormal(True), "denormals: flushed, was kept"),
    "default dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        "default dtype: torch.float64, was torch.float32",
    ),
    "fast path": (
        lambda: torch.backends.mha.set_fastpath_enabled(False),
        "torch.backends.mha.get_fastpath_enabled: False, was True",
    ),
}
SAME: dict[str, Callable[[], Any]] = {
    "threads": lambda: torch.set_num_threads(1),
    "precision": lambda: torch.set_float32_matmul_precision("highest"),
    "new interface": lambda: set_mkldnn("ieee"),
    "deterministic": lambda: torch.use_deterministic_algorithms(False),
    "denormals": lambda: torch.set_flush_denormal(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float32),
    "gradients": lambda: torch.ones(2, requires_grad=True).sum().backward(),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_named(kind: str) -> None:
    change, named = CHANGES[kind]
    before = numerical_settings()
    change()
    assert named in changed_settings(before)


@pytest.mark.parametrize("kind", SAME)
def test_the_same_setting_again_is_no_change(kind: str) -> None:
    before = numerical_settings()
    SAME[kind]()
    assert changed_settings(before) == []


def test_autocast_and_another_torch_are_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = numerical_settings()
    with torch.autocast("cpu", torch.bfloat16):
        assert changed_settings(before) == ["autocast on cpu: True, was False"]
    monkeypatch.setattr(torch, "__version__", "1.0")
    assert changed_settings(before) == [f"torch version: 1.0, was {before['torch version']}"]


def test_a_setting_that_is_new_or_gone_is_a_change() -> None:
    now = numerical_settings()
    assert changed_settings({name: value for name, value in now.items() if name != "threads"}) == ["threads: 1, was none"]
    assert changed_settings(now | {"flux": "on"}) == ["flux: none, was on"]
