"""Prompts of six kinds, each with speculation off and on: what came of them, sums by kind, a receipt explained."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.cli.frame.views import MARKS, Line, Table, facts, joined, outcome, short, whose_replay
from services.cli.ledger.receipt_files import Proof
from services.cli.ledger.receipts import envelope_document
from services.client.errors import KolmError
from services.client.generation.completion import Chunk, Finished, Metrics, Receipt
from services.client.generation.request import Message, Request, SamplingParams, SpecDecodeConfig
from services.client.generation.runtime import Runtime
from services.client.ledger.log import ReceiptDetails

KINDS = ("question", "code", "rewrite", "summary", "data", "maths")
_FILE = Path(__file__).parent / "questions.jsonl"

METHODS = ("off", "lookahead", "rest", "eagle3")
"""The methods that are compared, if they are loaded; the first is the reference."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line of `questions.jsonl`: a conversation to answer."""

    id: str
    kind: str
    messages: tuple[Message, ...]

    @property
    def ending(self) -> str:
        """The part that the output answers."""
        return self.messages[-1].content

    def request(self, sampling: SamplingParams) -> Request:
        return Request(messages=self.messages, sampling=sampling, tenant="demo")


def read_prompts(kind: str, count: int) -> list[Prompt]:
    """The first `count` prompts of a kind."""
    lines = map(json.loads, _FILE.read_text(encoding="utf-8").splitlines())
    of_kind = [line for line in lines if line["kind"] == kind]
    return [Prompt(line["id"], kind, tuple(Message(**turn) for turn in line["messages"])) for line in of_kind[:count]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt decoded with one method."""

    prompt: Prompt
    method: str
    token_ids: tuple[int, ...]
    metrics: Metrics
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Row:
    """A kind decoded with one method, all its prompts together. `identical` is None for the reference itself."""

    kind: str
    method: str
    tokens_per_second: float
    acceptance_length: float
    speedup: float
    identical: bool | None


def answer(
    runtime: Runtime, prompt: Prompt, method: str, sampling: SamplingParams, on_text: Callable[[str], None]
) -> Answer:
    """Decode, handing text over as it comes. Raises KolmError."""
    token_ids: list[int] = []
    config = SpecDecodeConfig(method=method)
    with runtime.stream(prompt.request(sampling), spec_decode=config) as events:
        for event in events:
            if isinstance(event, Chunk):
                token_ids += event.token_ids
                on_text(event.text)
            elif isinstance(event, Finished):
                if event.receipt is None:
                    raise KolmError(f"no receipt came with {prompt.id}")
                return Answer(prompt, method, tuple(token_ids), event.metrics, event.receipt)
    raise KolmError(f"the stream of {prompt.id} ended early")


def rows(answers: Sequence[Answer]) -> list[Row]:
    """One row for each kind and method, in the order in which they were first seen."""
    kinds = list(dict.fromkeys(each.prompt.kind for each in answers))
    methods = [method for method in METHODS if any(each.method == method for each in answers)]
    return [_row(_of(answers, kind, method), _of(answers, kind, "off")) for kind in kinds for method in methods]


def total(answers: Sequence[Answer], method: str) -> Row:
    """All kinds together."""
    return _row([each for each in answers if each.method == method], [each for each in answers if each.method == "off"])


def _of(answers: Sequence[Answer], kind: str, method: str) -> list[Answer]:
    return [each for each in answers if each.prompt.kind == kind and each.method == method]


def _row(answers: Sequence[Answer], reference: Sequence[Answer]) -> Row:
    """Speedup is of decoding time over the same prompts; prefill is the same work for every method."""
    method = answers[0].method
    tokens = sum(len(each.token_ids) for each in answers)
    seconds, off_seconds = _decode_seconds(answers), _decode_seconds(reference)
    same = [each.token_ids for each in answers] == [each.token_ids for each in reference]
    return Row(
        kind=answers[0].prompt.kind,
        method=method,
        tokens_per_second=(tokens - len(answers)) / seconds if seconds else 0.0,
        acceptance_length=tokens / max(1, sum(each.metrics.target_passes for each in answers)),
        speedup=off_seconds / seconds if seconds else 1.0,
        identical=None if method == "off" else same,
    )


def _decode_seconds(answers: Sequence[Answer]) -> float:
    return sum(each.metrics.decode_seconds for each in answers)


def explained(details: ReceiptDetails, proof: Proof) -> Table:
    """Identifiers are cut here, and nowhere else: `kolm receipts show` has them whole."""
    document = envelope_document(details.receipt.envelope)["document"]
    prompt, output, block = document["prompt"], document["output"], document["spec_decode"]
    verdict = details.verdicts[-1].document if details.verdicts else None
    rows: list[tuple[Line, ...]] = [
        ("the model", short(document["base_cid"]), "digest of weights and tokenizer"),
        ("the arithmetic", short(document["profile_cid"]), "how to compute the same bits again"),
        ("the prompt", f"{prompt['tokens']} tokens", f"sealed as {short(prompt['commitment'])}"),
        ("the answer", f"{output['tokens']} tokens", f"sealed as {short(output['commitment'])}"),
        ("the computation", short(output["stream_digest"]), "digest over tokens and logits"),
        ("how it was made", block["method"], f"{block['target_passes']} passes of the model"),
        ("signed", MARKS[proof.signature], "by the server's key for receipts"),
        ("in the log", MARKS[proof.inclusion], f"entry {details.receipt.index} of {proof.tree_size}, in a signed tree"),
    ]
    if verdict is not None:
        whose = whose_replay(verdict.verification, verdict.replayed_by)
        again = joined((f"{verdict.tokens_compared} tokens again, ", whose), "")
        rows.append(("audited", outcome(verdict.outcome), again))
    return facts(*rows)
