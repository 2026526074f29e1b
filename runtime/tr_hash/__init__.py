"""The TR-Hash layer: a shared SwiGLU beside experts chosen by token id through a fixed table."""

from .backends import BackendDecision
from .buckets import GraphBucket, GraphBucketPlanner
from .config import TRHashEngineConfig, TRHashStrategy
from .definition import reference_topk_swiglu
from .engine import TRHashEngine
from .op import TR_HASH_MLP
from .pair_codes import pair_codes
from .route_table import RouteTable, build_route_table

__all__ = [
    "TR_HASH_MLP",
    "BackendDecision",
    "GraphBucket",
    "GraphBucketPlanner",
    "RouteTable",
    "TRHashEngine",
    "TRHashEngineConfig",
    "TRHashStrategy",
    "build_route_table",
    "pair_codes",
    "reference_topk_swiglu",
]
