"""Which machine and versions a figure belongs to."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def describe() -> str:
    """One line: processor, threads, versions."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    processor = f"{len(names)} × {names[0]}" if names else platform.processor()
    return f"{processor}, {torch.get_num_threads()} thread(s), torch {torch.__version__}, Python {platform.python_version()}"
