"""The table of methods. A new one is a file beside this and a line here.

The order is that of preference: `auto` begins with the first that can run if a request declares no workload, and hands
over in this order.
"""

from __future__ import annotations

from pathlib import Path

from services.generation.drafting import draft_model, lookahead, rest
from services.generation.drafting.block import block_drafter as block
from services.generation.drafting.eagle3 import drafter as eagle3
from services.generation.drafting.heads import DraftHead, HeadConfigInvalid, HeadError, HeadKind, read_document
from services.generation.drafting.method_spec import DrafterInputs, MethodSpec
from services.generation.drafting.mtp import mtp_drafter as mtp
from services.generation.drafting.retrieval.manifest import DatastoreError
from services.generation.engine.drafter import Drafter
from services.generation.target.config.config import TargetConfig
from services.generation.target.errors import TargetError

METHODS: tuple[MethodSpec, ...] = (
    eagle3.METHOD,
    block.METHOD,
    mtp.METHOD,  # after heads that are named by a flag
    rest.METHOD,
    draft_model.METHOD,  # before copies: an operator who names a draft model expects its use
    lookahead.METHOD,
    lookahead.SUFFIX,
)


class CannotDraft(Exception):
    """The message names the method, and the flag that brings what it needs."""


def method_of(drafter: str) -> str:
    """The method of a drafter by the name that the engine knows it by."""
    return drafter.partition("/")[0]


def load_head(folder: Path, base: TargetConfig) -> DraftHead:
    """A head of whatever kind and layout. Raises HeadError."""
    return _kind_of(folder).load(folder, base)


def _kind_of(folder: Path) -> HeadKind:
    document, kinds = read_document(folder), {spec.name: spec.heads for spec in METHODS if spec.heads is not None}
    for kind in kinds.values():
        if kind.knows(document):
            return kind
    known = "; ".join(f"{name}: {kind.known_by}" for name, kind in kinds.items())
    named = {name: document[name] for name in ("speculators_model_type", "architectures") if name in document}
    raise HeadConfigInvalid(f"config.json: of no known kind of head, {named!r:.160}. {known}")


def build_drafters(parts: DrafterInputs) -> dict[str, Drafter]:
    """The drafters of all methods that can be built, in the order of the table.

    Raises CannotDraft: a method cannot be built from the server's flags.
    """
    drafters: dict[str, Drafter] = {}
    for spec in METHODS:
        try:
            drafters |= spec.build(parts)
        except (TargetError, DatastoreError, HeadError) as error:
            raise CannotDraft(f"{spec.name} ({spec.flag}): {error}") from error
    return drafters
