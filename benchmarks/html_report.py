"""What the report as a page costs: its size, what writing it takes, and when Chromium shows its lines.

    python -m benchmarks.html_report > benchmarks/results/html_report.md

Pages are of 20,000 values in three steps, and of a Llama of 12 layers that was compiled. Writing is processor time. Each is
opened five times, in a context of its own; the time is the median of what passes from the address to the second frame after
the first line is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
import transformers
from torch import nn

import foldfx
from tests.browser.chromium import launched, seconds_to_open
from tests.inspection.synthetic import chain_page

from .machine import describe

VALUES = 20_000
VOCABULARY, HIDDEN, LAYERS = 64, 256, 12
OPENINGS = 5


def llama() -> nn.Module:
    """A Llama whose first projections fold: it has fewer tokens than features."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    model: nn.Module = transformers.LlamaForCausalLM(config).eval()
    return model


def main() -> None:
    """Print one markdown table."""
    torch.set_num_threads(1)
    ids = torch.randint(VOCABULARY, (2, 6))
    result = foldfx.compile(llama(), [foldfx.Example((ids,))], dynamic=False)
    calls = result.diff.before.calls
    pages: dict[str, Callable[[Path], object]] = {
        f"{VALUES:,} values in three steps": lambda file: file.write_text(chain_page(VALUES, changed=1_000), encoding="utf-8"),
        f"Llama, {LAYERS} layers, {calls:,} calls, {result.status}": result.write_html,
    }
    with launched() as browser, TemporaryDirectory() as folder:
        load = ", ".join(f"{each:.2f}" for each in os.getloadavg())
        print("# The report as a page\n\nPrinted by `python -m benchmarks.html_report`; writing is processor time.\n")
        print(f"{describe()}, Chromium {browser.version}; load average {load}\n")
        print("| page | size | written | opened |\n" + "|---" * 4 + "|")
        for number, (name, write) in enumerate(pages.items()):
            file = Path(folder) / f"{number}.html"
            began = time.process_time()
            write(file)
            written = time.process_time() - began
            opened = median(seconds_to_open(browser, file) for _ in range(OPENINGS))
            print(f"| {name} | {file.stat().st_size / 1e6:.2f} MB | {written:.2f} s | {opened:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
