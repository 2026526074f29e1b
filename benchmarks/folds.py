"""Bytes and latency of the real checkpoints before and after folding: `python benchmarks/folds.py`.

Prints one markdown table. Latencies are medians of interleaved calls of the captured graph and of the folded one in
one process, with the same allocator settings; a ratio above 1 is a gain.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from machine import describe
from torch import nn

import foldfx
from foldfx.examples import g2p_en, magika
from foldfx.passes.latency import measure_side_by_side


def models() -> Iterator[tuple[str, nn.Module, list[foldfx.Example]]]:
    """Name, model and the call to time."""
    for batch in (1, 64):
        hidden = torch.zeros(batch, g2p_en.WIDTH)
        yield f"g2p-en encoder step, batch {batch}", g2p_en.make_encoder(), [foldfx.Example((torch.arange(batch) % 29, hidden))]
        yield f"g2p-en decoder step, batch {batch}", g2p_en.make_decoder(), [foldfx.Example((torch.arange(batch) % 74, hidden))]
    yield "magika, one file", magika.load(), [foldfx.Example((torch.arange(2048).reshape(1, -1) % 257,))]


def main() -> None:
    print(f"{describe()}\n")
    print("| model | folded block | whole state | before | after | ratio |\n|---|---|---|---|---|---|")
    for name, model, timed in models():
        examples = [*_examples(name), *timed]
        result = foldfx.compile(model, examples)
        captured = foldfx.compile(model, examples, pipeline=foldfx.Pipeline(disable=["fold_tokens"]))
        assert result.accepted, name
        timing = measure_side_by_side(captured.module, result.module, timed)
        rewrite, storage = result.report.data["rewrites"][0], result.report.data["storage"]
        print(
            f"| {name} | {rewrite['bytes_before']:,} → {rewrite['bytes_after']:,} B | {storage['before']['backing']:,} → "
            f"{storage['after']['backing']:,} B | {timing.before * 1e6:,.1f} µs | {timing.after * 1e6:,.1f} µs | "
            f"{timing.before / timing.after:.2f}× |"
        )


def _examples(name: str) -> list[foldfx.Example]:
    """Calls of two rows and more, so that the batch is captured as dynamic."""
    if "magika" in name:
        pairs = magika.classifier_examples()
    else:
        pairs = g2p_en.encoder_examples() if "encoder" in name else g2p_en.decoder_examples()
    return [foldfx.Example(*pair) for pair in pairs]


if __name__ == "__main__":
    main()
