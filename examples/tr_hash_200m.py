"""A decoder of the released 200M TR-Hash shape, and a training step: `python -m foldfx.examples.tr_hash_200m`.

16 layers of width 896 with grouped-query attention (14 heads of 64, 2 for keys and values, normalised queries and keys,
rotary positions) and a TR-Hash layer each: shared 3,072 beside four experts of 64, top-2 at 0.5 each, routed scale 2, so
that the routed branch is the sum of two experts. Embedding and head are one matrix of 32,000 rows. 201,194,368
parameters, drawn at random.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from foldfx.runtime.tr_hash import TRHashEngine, TRHashEngineConfig, TRHashStrategy

LAYERS, HIDDEN, VOCABULARY = 16, 896, 32_000
HEADS, KEY_HEADS, HEAD_WIDTH = 14, 2, 64
SHARED, EXPERTS, EXPERT_WIDTH, TOP_K = 3_072, 4, 64, 2
ROTARY_BASE, INITIALIZER_RANGE = 10_000.0, 0.02
PARAMETERS = 201_194_368


def layer_config(layer_index: int, precision: str = "bf16") -> TRHashEngineConfig:
    """The TR-Hash layer at `layer_index`."""
    return TRHashEngineConfig(
        hidden_size=HIDDEN,
        vocab_size=VOCABULARY,
        num_experts=EXPERTS,
        top_k=TOP_K,
        shared_width=SHARED,
        expert_width=EXPERT_WIDTH,
        routing_strategy=TRHashStrategy.MULTI_HASH,
        layer_index=layer_index,
        route_weights=(0.5, 0.5),
        routed_output_scale=2.0,
        precision=precision,  # type: ignore[arg-type]
    )


class Attention(nn.Module):
    """Causal attention over one sequence of each row."""

    def __init__(self, **place: Any) -> None:
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_WIDTH, bias=False, **place)
        self.k_proj = nn.Linear(HIDDEN, KEY_HEADS * HEAD_WIDTH, bias=False, **place)
        self.v_proj = nn.Linear(HIDDEN, KEY_HEADS * HEAD_WIDTH, bias=False, **place)
        self.o_proj = nn.Linear(HEADS * HEAD_WIDTH, HIDDEN, bias=False, **place)
        self.q_norm, self.k_norm = nn.RMSNorm(HEAD_WIDTH, **place), nn.RMSNorm(HEAD_WIDTH, **place)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, H] → [B, S, H]."""
        query, key, value = (
            project(x).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotated(self.q_norm(query)), rotated(self.k_norm(key))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        output: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return output


def rotated(x: Tensor) -> Tensor:
    """Rotary positions: the pairs (i, i + W/2) of [B, heads, S, W] turned by position · base^(-2i/W)."""
    half = x.shape[-1] // 2
    speeds = ROTARY_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32).unsqueeze(1) * speeds
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


class Block(nn.Module):
    """Attention and a TR-Hash layer, each behind a norm and beside a residual."""

    def __init__(self, layer_index: int, precision: str, **place: Any) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = nn.RMSNorm(HIDDEN, **place), Attention(**place)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, **place)
        self.mlp = TRHashEngine(layer_config(layer_index, precision), device=place["device"])

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """[B, S, H] and the tokens' ids [B, S] → [B, S, H]."""
        x = x + self.self_attn(self.input_layernorm(x))
        routed: Tensor = self.mlp(self.post_attention_layernorm(x), ids)
        return x + routed


class Decoder(nn.Module):
    """Scores of the next token.

    Args:
        precision: of all parameters, `fp32`, `bf16` or `fp16`.
        device: of all parameters; `meta` builds none of them.
    """

    def __init__(self, precision: str = "bf16", device: torch.device | str | None = None) -> None:
        super().__init__()
        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        place: dict[str, Any] = {"dtype": dtypes[precision], "device": device}
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN, **place)
        self.layers = nn.ModuleList(Block(index, precision, **place) for index in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, **place)
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=INITIALIZER_RANGE)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [B, S] → [B, S, V]."""
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, ids)
        return functional.linear(self.norm(x), self.embed_tokens.weight)


def step(model: Decoder, ids: Tensor, rate: float = 1e-2) -> tuple[float, float]:
    """One step of gradient descent on predicting each next token.

    Args:
        ids: int64 [B, S], S at least 2.

    Returns:
        The loss before and after.
    """

    def loss() -> Tensor:
        scores = model(ids[:, :-1]).float()
        return functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())

    before = loss()
    before.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(rate * parameter.grad)
                parameter.grad = None
        return float(before), float(loss())


def main() -> None:
    """Build it, count it, take a step."""
    torch.manual_seed(0)
    model = Decoder()
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    before, after = step(model, torch.randint(VOCABULARY, (1, 33)))
    print(f"loss {before:.3f} → {after:.3f}")
    engine = model.layers[0].mlp
    assert isinstance(engine, TRHashEngine)
    print(f"{engine.capability_summary()['selected_backend']}, {engine.last_backend}")


if __name__ == "__main__":
    main()
