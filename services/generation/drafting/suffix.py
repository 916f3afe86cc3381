"""Suffix decoding by its name: the drafts of `lookahead`, which copy from the tenant's past outputs too."""

from __future__ import annotations

from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.method_spec import MethodSpec

METHOD = MethodSpec(
    name="suffix",
    meaning="what followed the same words in the tenant's own past outputs or in the request",
    by_name_only=True,  # `auto` has one drafter of copies
    build=lambda parts: {"suffix": LookaheadDrafter(parts.pasts)},
)
