"""The layer in operations without side effects whose shapes do not depend on values: what a graph can hold.

Pre-activations of experts that are not chosen are set to zero, so that an overflow in them reaches neither the row nor a
gradient. Autograd, forward mode and `torch.func` differentiate this form, any number of times.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .call import Call


def traceable_forward(call: Call) -> Tensor:
    """The layer as one SwiGLU over all experts' columns beside the shared one, with a factor for each token and expert.

    Args:
        call: checked; its `lowering` is not read.

    Returns:
        Of hidden's shape.

    Raises:
        IndexError: an id outside the vocabulary, under `out_of_range="error"`; raised by the read of the table. On a CUDA
            device that read is an assertion of the device instead, after which the process can use the device no more.
    """
    x = call.hidden.reshape(-1, call.hidden.shape[-1])
    experts, width, inner = call.expert_gate.shape
    factors = _factors(call, experts).unsqueeze(2)
    flat = (x @ weight.permute(1, 0, 2).reshape(width, experts * inner) for weight in call.experts[:2])
    gate, up = (torch.where(factors == 0, 0.0, each.reshape(-1, experts, inner)) for each in flat)
    scaled = (functional.silu(gate) * up * factors).to(x.dtype)
    y = scaled.reshape(-1, experts * inner) @ call.expert_down.reshape(experts * inner, width)
    if call.shared is not None:
        hidden = functional.silu(functional.linear(x, call.shared[0])) * functional.linear(x, call.shared[1])
        shared = functional.linear(hidden, call.shared[2])
        y = y + (shared if call.shared_scale == 1 else shared * call.shared_scale)
    return y.reshape(call.hidden.shape)


def _factors(call: Call, experts: int) -> Tensor:
    """Of each token and expert, [N, E], in float32 at least."""
    ids = call.token_ids.reshape(-1).to(torch.int64)
    if call.out_of_range == "clamp":
        ids = ids.clamp(0, call.route_table.shape[1] - 1)
    routes = torch.embedding(call.route_table.t(), ids).to(torch.int64)  # raises IndexError outside, negative ids included
    factors = call.hidden.new_zeros((ids.shape[0], experts), dtype=torch.promote_types(torch.float32, call.hidden.dtype))
    for position, factor in enumerate(call.factors):
        factors = factors.scatter_add(1, routes[:, position : position + 1], factors.new_full((ids.shape[0], 1), factor))
    return factors
