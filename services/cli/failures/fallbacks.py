"""Why a request was served by another method than the one it asked for: a sentence and a remedy for each reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fallback:
    """A reason as receipts have it (`spec_decode.fallback_reason`), explained."""

    sentence: str
    remedy: str


FALLBACKS = {
    "no_head": Fallback(
        "no draft head is loaded for this model", "kolm up --head DIR, or publish one: kolm heads push"
    ),
    "no_datastore": Fallback("no datastore is loaded", "kolm datastore build, then kolm up --shared-datastore DIR"),
    "no_draft_model": Fallback("no smaller model is loaded", "kolm up --draft-model DIR"),
    "head_withdrawn": Fallback("its publisher has withdrawn the head", "kolm heads list shows others"),
    "head_needs_retraining": Fallback(
        "too few of the head's drafts hold with this adapter", "kolm heads train; --method eagle3 drafts with it anyway"
    ),
    "temperature": Fallback(
        "drafts hardly ever hold at this temperature",
        "lower --temperature, or raise the server's --speculation-max-temperature",
    ),
    "profile_unproven": Fallback(
        "this machine's numerics failed their probe, so nothing may draft", "kolm doctor names what differs"
    ),
    "halt_state_unknown": Fallback(
        "the ledger has not told the server lately what is halted", "kolm status shows whether the ledger answers"
    ),
    "halted": Fallback("an audit has halted it", "kolm halts list shows why, kolm halts resume lifts it"),
    "not_loaded": Fallback("no method is loaded", "kolm status shows which there are"),
}


def explained(reason: str | None) -> str | None:
    """A line for people; None where there is no reason, or a server that is newer than this command has another."""
    found = FALLBACKS.get(reason or "")
    return None if found is None else f"{reason}: {found.sentence}; {found.remedy}"
