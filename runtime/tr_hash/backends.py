"""Which backend serves a call, and why each faster one does not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

import torch

from .config import Backend, Precision, TRHashEngineConfig
from .pair_codes import pairs_eligible

ROCM_SWITCH = "FOLDFX_ALLOW_ROCM_TRITON"

PARAMETER_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class BackendDecision:
    """What was asked for and who computes.

    Attributes:
        requested: the configuration's.
        selected: who computes: `pytorch` or `cuda_graph`.
        reasons: why a faster backend was not selected, one text each.
        graph_safe: whether the computation runs inside a CUDA graph.
        quantized: whether weights are quantised; no backend does that.
        lowering: for `pytorch`, the reference lowering that ran; None where it is chosen inside a traced graph.
    """

    requested: Backend
    selected: Backend
    reasons: tuple[str, ...] = ()
    graph_safe: bool = False
    quantized: bool = False
    lowering: str | None = None


class Circumstances(NamedTuple):
    """What a decision rests on.

    Attributes:
        config: of the layer.
        device_type: as in `torch.device.type`.
        reduced: whether fewer experts or columns are active than are stored.
    """

    config: TRHashEngineConfig
    device_type: str
    reduced: bool


def parameter_dtype(precision: Precision) -> torch.dtype:
    """The dtype parameters are created in.

    Raises:
        NotImplementedError: FP8 or INT8, naming what is missing.
    """
    if precision not in PARAMETER_DTYPES:
        raise NotImplementedError(
            f"{precision} needs a quantised grouped matrix product and scales for each weight, which foldfx does not have; "
            f"take one of {[str(each) for each in PARAMETER_DTYPES]}"
        )
    return PARAMETER_DTYPES[precision]


def declined(circumstances: Circumstances) -> dict[Backend, str]:
    """Why each backend faster than plain PyTorch does not serve these calls under `auto`."""
    return {
        Backend.FUSED_CUDA: _no_fused(circumstances),
        Backend.CGGR: _no_triton(circumstances) or "foldfx has no grouped Triton kernel",
        Backend.CUDA_GRAPH: _no_graph(circumstances),
    }


def decide(circumstances: Circumstances) -> BackendDecision:
    """The backend of a call.

    Raises:
        RuntimeError: the requested backend cannot serve it, with the reason.
    """
    requested, reasons = circumstances.config.backend, declined(circumstances)
    if requested is Backend.PYTORCH:
        return BackendDecision(requested, Backend.PYTORCH)
    if requested is Backend.CUDA_GRAPH:
        if circumstances.device_type != "cuda":
            raise RuntimeError(f"CUDA Graph backend requires a CUDA device, got {circumstances.device_type}")
        return BackendDecision(requested, Backend.CUDA_GRAPH, graph_safe=True)
    if requested is not Backend.AUTO:
        raise RuntimeError(f"{requested} backend was requested, but {reasons[requested]}; take backend='auto'")
    return BackendDecision(requested, Backend.PYTORCH, tuple(f"{backend}: {why}" for backend, why in reasons.items()))


def _no_fused(circumstances: Circumstances) -> str:
    config = circumstances.config
    if not pairs_eligible(config.num_experts, config.top_k):
        return f"fused CUDA requires top_k=2 and two to eight experts, got {config.top_k} of {config.num_experts}"
    if circumstances.reduced:
        return "fused CUDA computes all experts at full width, and the capacity is reduced"
    return _no_triton(circumstances) or "foldfx has no fused Triton kernel"


def _no_triton(circumstances: Circumstances) -> str | None:
    if circumstances.device_type != "cuda":
        return f"it requires a CUDA device, got {circumstances.device_type}"
    if torch.version.hip is not None and os.environ.get(ROCM_SWITCH) != "1":
        return f"Triton is off on ROCm unless {ROCM_SWITCH}=1"
    return None


def _no_graph(circumstances: Circumstances) -> str:
    if circumstances.device_type != "cuda":
        return f"it requires a CUDA device, got {circumstances.device_type}"
    return "it serves fixed shapes in inference, so it is never taken unasked; set backend='cuda_graph' and graph_buckets"
