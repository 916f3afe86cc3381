"""The table of methods. A new one is a file beside this and a line here.

The order is that of preference: what `auto` begins with where nobody says what a request is like, and then hands over
to.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.generation.drafting import draft_model, lookahead, rest
from services.generation.drafting.eagle3 import method as eagle3
from services.generation.drafting.method_spec import MethodSpec, Parts
from services.generation.engine.drafter import Drafter

METHODS: tuple[MethodSpec, ...] = (eagle3.METHOD, lookahead.METHOD, rest.METHOD, draft_model.METHOD)


def method_of(drafter: str) -> str:
    """The method of a drafter by the name that the engine knows it by."""
    return drafter.partition("/")[0]


def build_drafters(parts: Parts) -> dict[str, Drafter]:
    """Those of every method that can be built, in the order of the table."""
    built: list[Mapping[str, Drafter]] = [spec.build(parts) for spec in METHODS]
    return {name: drafter for drafters in built for name, drafter in drafters.items()}
