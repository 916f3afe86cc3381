"""The columns of the table, one row a receipt, from the signed documents. No prompt, no output, no stop string.

docs/tables.md has the same list for readers; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ledger.documents.receipt import Receipt
from ledger.documents.verdict import Verdict

TEXT, INTEGER, NUMBER, BOOLEAN, TIME = "text", "integer", "number", "boolean", "time"
"""`integer` has 64 bits with a sign, `number` is a float64, `time` is UTC in milliseconds."""

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Row:
    """The receipt at `entry` with the newest of the verdicts on it, which stands at `verdict_entry`."""

    entry: int
    receipt: Receipt
    verdicts: int = 0
    verdict_entry: int | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """`value` gives what stands in a row; times as the text of documents. `unit` is empty where there is none."""

    name: str
    kind: str
    unit: str
    value: Callable[[Row], Value]


def _of_verdict(name: str, kind: str, unit: str, member: Callable[[Verdict], Value]) -> Column:
    return Column(name, kind, unit, lambda row: None if row.verdict is None else member(row.verdict))


def _of_deviation(name: str, kind: str, unit: str, member: Callable[[Any], Value]) -> Column:
    return _of_verdict(
        name, kind, unit, lambda verdict: None if verdict.deviation is None else member(verdict.deviation)
    )


COLUMNS = (
    Column("entry", INTEGER, "", lambda row: row.entry),
    Column("receipt_id", TEXT, "", lambda row: row.receipt.receipt_id),
    Column("issued_at", TIME, "", lambda row: row.receipt.issued_at),
    Column("tenant", TEXT, "", lambda row: row.receipt.tenant),
    Column("request_id", TEXT, "", lambda row: row.receipt.request_id),
    Column("nonce", TEXT, "", lambda row: row.receipt.nonce),
    Column("base_cid", TEXT, "", lambda row: row.receipt.base_cid),
    Column("adapter_cid", TEXT, "", lambda row: row.receipt.adapter_cid),
    Column("tokenizer_cid", TEXT, "", lambda row: row.receipt.tokenizer_cid),
    Column("profile_cid", TEXT, "", lambda row: row.receipt.profile_cid),
    Column("profile_proven", BOOLEAN, "", lambda row: row.receipt.profile_proven),
    Column("halt_epoch", INTEGER, "halts", lambda row: row.receipt.halt_epoch),
    Column("temperature", NUMBER, "", lambda row: row.receipt.sampling.temperature),
    Column("top_p", NUMBER, "", lambda row: row.receipt.sampling.top_p),
    Column("top_k", INTEGER, "tokens", lambda row: row.receipt.sampling.top_k),
    Column("min_p", NUMBER, "", lambda row: row.receipt.sampling.min_p),
    Column("seed", TEXT, "", lambda row: str(row.receipt.sampling.seed)),  # below 2^64, which no int64 holds
    Column("max_tokens", INTEGER, "tokens", lambda row: row.receipt.sampling.max_tokens),
    Column("n", INTEGER, "choices", lambda row: row.receipt.sampling.n),
    Column("choice", INTEGER, "", lambda row: row.receipt.sampling.choice),
    Column("prompt_tokens", INTEGER, "tokens", lambda row: row.receipt.prompt.tokens),
    Column("prompt_commitment", TEXT, "", lambda row: row.receipt.prompt.commitment),
    Column("prompt_text_commitment", TEXT, "", lambda row: row.receipt.prompt.text_commitment),
    Column("chat_template", TEXT, "", lambda row: row.receipt.prompt.chat_template),
    Column("output_tokens", INTEGER, "tokens", lambda row: row.receipt.output.tokens),
    Column("output_commitment", TEXT, "", lambda row: row.receipt.output.commitment),
    Column("output_text_commitment", TEXT, "", lambda row: row.receipt.output.text_commitment),
    Column("finish_reason", TEXT, "", lambda row: row.receipt.output.finish_reason),
    Column("stream_digest", TEXT, "", lambda row: row.receipt.output.stream_digest),
    Column("min_margin", NUMBER, "logits", lambda row: row.receipt.output.min_margin),
    Column("method", TEXT, "", lambda row: row.receipt.spec_decode.method),
    Column("requested_method", TEXT, "", lambda row: row.receipt.spec_decode.requested_method),
    Column("fallback_reason", TEXT, "", lambda row: row.receipt.spec_decode.fallback_reason),
    Column("head_cid", TEXT, "", lambda row: row.receipt.spec_decode.head_cid),
    Column("k", INTEGER, "tokens", lambda row: row.receipt.spec_decode.k),
    Column("tokens_proposed", INTEGER, "tokens", lambda row: row.receipt.spec_decode.tokens_proposed),
    Column("tokens_accepted", INTEGER, "tokens", lambda row: row.receipt.spec_decode.tokens_accepted),
    Column("acceptance_rate", NUMBER, "", lambda row: row.receipt.spec_decode.acceptance_rate),
    Column(
        "mean_acceptance_length", NUMBER, "tokens a pass", lambda row: row.receipt.spec_decode.mean_acceptance_length
    ),
    Column("target_passes", INTEGER, "passes", lambda row: row.receipt.spec_decode.target_passes),
    Column("wall_clock_speedup", NUMBER, "", lambda row: row.receipt.spec_decode.wall_clock_speedup),
    Column("speedup_basis", TEXT, "", lambda row: row.receipt.spec_decode.speedup_basis),
    Column("verified_identical_to_off", BOOLEAN, "", lambda row: row.receipt.spec_decode.verified_identical_to_off),
    Column("verdicts", INTEGER, "verdicts", lambda row: row.verdicts),
    Column("verdict_entry", INTEGER, "", lambda row: row.verdict_entry),
    _of_verdict("outcome", TEXT, "", lambda verdict: verdict.outcome),
    _of_verdict("verification", TEXT, "", lambda verdict: verdict.verification),
    _of_verdict("replayed_by", TEXT, "", lambda verdict: verdict.replayed_by),
    _of_verdict("replayed_at", TIME, "", lambda verdict: verdict.replayed_at),
    _of_verdict("tokens_compared", INTEGER, "tokens", lambda verdict: verdict.tokens_compared),
    _of_verdict("off_seconds", NUMBER, "seconds", lambda verdict: verdict.off_seconds),
    _of_verdict("unreplayable_reason", TEXT, "", lambda verdict: verdict.reason),
    _of_deviation("deviation_position", INTEGER, "tokens", lambda deviation: deviation.position),
    _of_deviation("deviation_expected_token", INTEGER, "", lambda deviation: deviation.expected_token),
    _of_deviation("deviation_actual_token", INTEGER, "", lambda deviation: deviation.actual_token),
)
