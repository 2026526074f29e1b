"""Kernel providers and the choice between them."""

from .provider import Claim, Declined, Provider, is_semantic, lower
from .reference import Reference

PROVIDERS: tuple[Provider, ...] = (Reference(),)
"""Asked in this order; the reference comes last."""

__all__ = ["PROVIDERS", "Claim", "Declined", "Provider", "Reference", "is_semantic", "lower"]
