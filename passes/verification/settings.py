"""The settings of the process under which figures are measured: other ones may round differently."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import torch

_READ: dict[str, Callable[[], object]] = {
    "torch version": lambda: torch.__version__,
    "threads": torch.get_num_threads,
    "default dtype": torch.get_default_dtype,
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "deterministic algorithms": lambda: ("off", "warn", "on")[torch.get_deterministic_debug_mode()],
    "denormals": lambda: "flushed" if (torch.tensor([1e-40]) * 1).item() == 0 else "kept",
    "CPU capability": torch.backends.cpu.get_cpu_capability,
    "autocast on cpu": lambda: torch.is_autocast_enabled("cpu"),
    "autocast on cuda": lambda: torch.is_autocast_enabled("cuda"),
}
_FLAGS = (
    "mkldnn.enabled",
    "mkldnn.deterministic",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
    "mkldnn.rnn.fp32_precision",
    "mha.get_fastpath_enabled",
)
_CUDA_FLAGS = (
    "cuda.matmul.allow_tf32",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cudnn.enabled",
    "cudnn.deterministic",
    "cudnn.benchmark",
    "cudnn.allow_tf32",
)


def numerical_settings() -> dict[str, str]:
    """The settings that can change how a float result is rounded, as text, by name; CUDA's only where there is a device."""
    found = {name: _text(read) for name, read in _READ.items()}
    flags = _FLAGS + (_CUDA_FLAGS if torch.cuda.is_available() else ())
    found |= {f"torch.backends.{name}": _text(lambda name=name: _flag(name)) for name in flags}  # type: ignore[misc]
    if torch.cuda.is_available():
        found["CUDA device"] = torch.cuda.get_device_name()
    return found


def changed_settings(before: dict[str, str]) -> list[str]:
    """The settings that are not as they were, as "name: now, was before"."""
    now = numerical_settings()
    names = before | now
    return [
        f"{name}: {now.get(name, 'none')}, was {before.get(name, 'none')}"
        for name in names
        if now.get(name) != before.get(name)
    ]


def _flag(name: str) -> object:
    value = attrgetter(name)(torch.backends)
    if name.endswith("fp32_precision") and value == "none":
        return "ieee"
    return value() if callable(value) else value


def _text(read: Callable[[], object]) -> str:
    """The setting as text; torch refuses to tell a precision that was set through its old and its new interface at once."""
    try:
        return str(read())
    except (RuntimeError, AttributeError):
        return "unknown"
