"""One receipt, explained: the meaning of each part, and who can find out that it is false."""

from __future__ import annotations

from rich.table import Table

from services.cli.jobs.receipts.receipt_proof import Proof
from services.cli.terminal.output import MARKS, outcome, short, whose_replay
from services.cli.views.receipts.documents import envelope_json
from services.client.ledger.log import ReceiptDetails


def explained(details: ReceiptDetails, proof: Proof) -> Table:
    """Identifiers are cut here, and nowhere else: `kolm receipts show` has them whole."""
    document = envelope_json(details.receipt.envelope)["document"]
    prompt, output, block = document["prompt"], document["output"], document["spec_decode"]
    verdict = details.verdicts[-1] if details.verdicts else None
    rows = [
        ("the model", short(document["base_cid"]), "digest of weights and tokenizer"),
        ("the arithmetic", short(document["profile_cid"]), "how to compute the same bits again"),
        (
            "the prompt",
            f"{prompt['tokens']} tokens",
            f"sealed as {short(prompt['commitment'])}",
        ),
        ("the answer", f"{output['tokens']} tokens", f"sealed as {short(output['commitment'])}"),
        ("the computation", short(output["stream_digest"]), "digest over tokens and logits"),
        ("how it was made", block["method"], f"{block['target_passes']} passes of the model"),
        ("signed", MARKS[proof.signature], "by the server's key for receipts"),
        ("in the log", MARKS[proof.inclusion], f"entry {details.receipt.index} of {proof.tree_size}, in a signed tree"),
    ]
    if verdict is not None:
        whose = whose_replay(verdict.verification, verdict.replayed_by)
        rows.append(("audited", outcome(verdict.outcome), f"{verdict.tokens_compared} tokens again, {whose}"))
    made = Table.grid(padding=(0, 2))
    for row in rows:
        made.add_row(*row)
    return made
