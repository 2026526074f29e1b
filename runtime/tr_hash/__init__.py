"""The TR-Hash layer: a shared SwiGLU beside experts chosen by token id through a fixed table."""

from .buckets import GraphBucket, GraphBucketPlanner
from .config import TRHashEngineConfig, TRHashStrategy
from .pair_codes import pair_codes
from .route_table import RouteTable, build_route_table

__all__ = [
    "GraphBucket",
    "GraphBucketPlanner",
    "RouteTable",
    "TRHashEngineConfig",
    "TRHashStrategy",
    "build_route_table",
    "pair_codes",
]
