"""Rates of a stack between two looks."""

from __future__ import annotations

from dataclasses import dataclass

from services.cli.jobs.running.stack import Stack


@dataclass(frozen=True, slots=True)
class Rates:
    """A second's worth of tokens, requests and entries, and averages over the time between; None where nothing ran."""

    seconds: float
    tokens: float
    requests: float
    entries: float
    verdicts: float
    first_token: float | None
    next_token: float | None
    acceptance: float | None
    batch: float | None
    commit: float | None
    passes: dict[str, float]


def rates(before: Stack, after: Stack) -> Rates:
    """From two looks at the same servers; one that was restarted in between counts from its start."""
    seconds = max(_read_at(after) - _read_at(before), 1e-3)

    def grown(server: str, name: str) -> float:
        new, old = after.of(server).total(name), before.of(server).total(name)
        return new - old if new >= old else new

    def average(server: str, name: str) -> float | None:
        count = grown(server, f"{name}_count")
        return grown(server, f"{name}_sum") / count if count else None

    drafted = grown("generation", "vllm:spec_decode_num_draft_tokens_total")
    accepted = grown("generation", "vllm:spec_decode_num_accepted_tokens_total")
    new = after.of("generation").by("kolm_sequence_passes_total", "method")
    old = before.of("generation").by("kolm_sequence_passes_total", "method")
    return Rates(
        seconds=seconds,
        tokens=grown("generation", "vllm:generation_tokens_total") / seconds,
        requests=grown("generation", "vllm:request_success_total") / seconds,
        entries=grown("ledger", "kolm_ledger_entries") / seconds,
        verdicts=grown("auditor", "kolm_auditor_verdicts_total") / seconds,
        first_token=average("generation", "vllm:time_to_first_token_seconds"),
        next_token=average("generation", "vllm:inter_token_latency_seconds"),
        acceptance=accepted / drafted if drafted else None,
        batch=average("ledger", "kolm_ledger_batch_entries"),
        commit=average("ledger", "kolm_ledger_commit_seconds"),
        passes={method: (count - old.get(method, 0.0)) / seconds for method, count in sorted(new.items())},
    )


def _read_at(stack: Stack) -> float:
    return max(server.read_at for server in stack.servers)
