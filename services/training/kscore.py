"""The k-score of a head: the share of its draft tokens that a target accepts, bare or with an adapter.

Drafts are chains of one depth at temperature 0, one in every pass, whatever its cost: a measure of the head, not of the
machine. Only the end of an answer shortens a draft.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from services.generation.drafting.block.block_checkpoint import BlockHead
from services.generation.drafting.block.block_drafter import BlockDrafter
from services.generation.drafting.eagle3.checkpoint import Head
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.heads import DraftHead
from services.generation.drafting.mtp.assistant import Assistant
from services.generation.drafting.mtp.block_weights import MtpBlock
from services.generation.drafting.mtp.mtp_drafter import drafter_of
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Drafter
from services.generation.engine.events import Event, Finished, SpeculationMetrics
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sequence import NoText
from services.generation.target.target import Target

DEPTH = 4

_AT_ONCE = 16
_FREE_ROWS = PassCost.line(fixed=1e9, row=1.0)  # seconds: beside such a pass every draft token is worth its row
_SETTINGS = EngineSettings(max_sequences=_AT_ONCE, max_waiting=_AT_ONCE)

_CHAINS = {
    "eagle3": {"tree_width": 1},
    "block": {"block_width": 1},
    "mtp": {"tree_width": 1},
}  # parameters of drafts without branches

Prompt = tuple[int, ...]


class NothingMeasured(Exception):
    """No answer was long enough for a draft."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of the `prompts` for which anything was drafted; `tokens` were emitted for them."""

    prompts: int
    tokens: int
    mean_acceptance: float  # mean over prompts of accepted / proposed
    mean_acceptance_length: float  # tokens that a pass emits, the target's own included
    acceptance_by_depth: tuple[float, ...]  # share of drafts whose token at that depth was accepted


def measure(
    target: Target,
    head: DraftHead,
    prompts: Sequence[Prompt],
    adapter_cid: str | None = None,
    *,
    k: int = DEPTH,
    max_tokens: int = 64,
    progress: Callable[[int], None] = lambda done: None,
) -> Measured:
    """Answer all prompts greedily with drafts of depth `k`; `progress` takes how many are done.

    Raises:
        InvalidRequest: the adapter is not loaded, or a prompt does not fit the context.
        NothingMeasured: no answer was long enough for a draft.
    """
    drafters = {head.kind: _drafter(head, target)}
    core = EngineCore(target, drafters, NoText, _FREE_ROWS, _SETTINGS, lambda: 0.0)  # nothing here is timed
    sampling = SamplingParams(max_tokens=max_tokens)
    parameters = _CHAINS[head.kind] | {"tree_tokens": k}
    waiting = (
        EngineRequest(str(number), prompt, sampling, adapter=adapter_cid, method=head.kind, k=k, parameters=parameters)
        for number, prompt in enumerate(prompts)
    )
    ended: list[SpeculationMetrics] = []

    def sink(event: Event) -> None:
        if isinstance(event, Finished):
            ended.append(event.outcome.metrics)
            progress(len(ended))

    while len(ended) < len(prompts):
        load = core.load()
        for request in islice(waiting, _AT_ONCE - load.running - load.waiting):
            core.add(request, sink)
        core.step()
    return _summed([metrics for metrics in ended if metrics.num_draft_tokens], k)


def _drafter(head: DraftHead, target: Target) -> Drafter:
    if isinstance(head, BlockHead):
        return BlockDrafter(head, target)
    if isinstance(head, MtpBlock | Assistant):
        return drafter_of(head, target)
    assert isinstance(head, Head)
    return Eagle3Drafter(head, target)


def prompts_digest(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over every prompt's length and token ids, each as a little-endian u32."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(b"".join(number.to_bytes(4, "little") for number in (len(prompt), *prompt)))
    return "sha256:" + digest.hexdigest()


def _summed(drafted: list[SpeculationMetrics], k: int) -> Measured:
    if not drafted:
        raise NothingMeasured("no answer was long enough for a draft; take other prompts, or more tokens")
    drafts, passes = sum(each.num_drafts for each in drafted), sum(each.target_passes for each in drafted)
    tokens = sum(each.output_tokens for each in drafted)
    return Measured(
        prompts=len(drafted),
        tokens=tokens,
        mean_acceptance=sum(each.acceptance_rate for each in drafted) / len(drafted),
        mean_acceptance_length=tokens / passes,
        acceptance_by_depth=tuple(_accepted(drafted, depth) / drafts for depth in range(k)),
    )


def _accepted(drafted: list[SpeculationMetrics], depth: int) -> int:
    return sum(sum(each.num_accepted_tokens_per_pos[depth : depth + 1]) for each in drafted)
