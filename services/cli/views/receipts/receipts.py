"""Receipts: a list, and one in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ledger.documents.receipt import Receipt
from services.cli.failures.fallbacks import explained
from services.cli.terminal.output import MARKS, outcome, table, whose_replay
from services.cli.views.receipts.documents import envelope_json
from services.client.ledger.log import ReceiptDetails, ReceiptEntry, Verdict

if TYPE_CHECKING:
    from services.cli.jobs.ledger.erasure import Erased
    from services.cli.jobs.receipts.receipt_proof import Proof


def list_view(receipts: list[ReceiptEntry]) -> RenderableType:
    """One line for each receipt."""
    made = table("entry", "receipt", "method", "tokens", "verdict", right=("entry", "tokens"), whole=("receipt",))
    for receipt in receipts:
        tokens = envelope_json(receipt.envelope)["document"]["output"]["tokens"]
        made.add_row(
            str(receipt.index), receipt.receipt_id, receipt.method, str(tokens), outcome(receipt.outcome, tokens)
        )
    return made if receipts else Text("no receipts")


def proven_view(count: int, tree_size: int, *, complete: bool) -> RenderableType:
    """The proof of a list."""
    whole = ", and none of the newest was left out" if complete else ""
    return f"[green]✓[/] {count} receipts, each signed and in the signed log of {tree_size} entries{whole}"


def erased_view(erased: Erased) -> RenderableType:
    """Where an erasure stands in the log."""
    proven = ", proven" if erased.proven else ""
    return (
        f"erased the content of {erased.receipt_id} (entry {erased.receipt_index}); "
        f"the erasure is entry {erased.erasure_index}{proven}"
    )


def receipt_view(details: ReceiptDetails, proof: Proof) -> RenderableType:
    """A receipt, section by section: who and what, how it was computed, what came out, what is proven."""
    document = envelope_json(details.receipt.envelope)["document"]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in (
        *_request(document),
        *_output(document),
        *_content(details),
        *_speculation(document),
        *_proven(details, proof),
    ):
        grid.add_row(name, value)
    title = Text.assemble(("receipt ", "bold"), details.receipt.receipt_id)
    return Group(title, grid) if proof.ok else Group(title, grid, Text(proof.problem or "", style="bold red"))


def _request(document: dict[str, Any]) -> list[tuple[str, str]]:
    sampling = document["sampling"]
    shown = {name: sampling[name] for name in ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")}
    return [
        ("issued", f"{document['issued_at']} for {escape(document['tenant'])}"),
        ("request", escape(document["request_id"])),
        ("base", document["base_cid"]),
        ("numerics profile", document["profile_cid"]),
        *_probe(document),
        ("sampling", escape(", ".join(f"{name} {value}" for name, value in shown.items()))),
    ]


def _probe(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Old receipts do not say whether the profile was proven."""
    said = {
        True: "passed its probe at the server's start",
        False: "[bold]had failed its probe[/]: one row a pass, speculation off",
    }
    return [("", said[document["profile_proven"]])] if "profile_proven" in document else []


def _output(document: dict[str, Any]) -> list[tuple[str, str]]:
    prompt, output = document["prompt"], document["output"]
    margin = "" if output["min_margin"] is None else f", least margin {output['min_margin']:.4g}"
    return [
        ("prompt", f"{prompt['tokens']} tokens, commitment {prompt['commitment']}"),
        ("output", f"{output['tokens']} tokens, commitment {output['commitment']}"),
        ("", f"finished by {output['finish_reason']}{margin}"),
        ("stream digest", output["stream_digest"]),
    ]


def _content(details: ReceiptDetails) -> list[tuple[str, str]]:
    said = {
        "KEPT": "kept, for auditors",
        "ERASED": f"[bold]erased[/] by entry {details.erasure_index}",
        "NEVER_GIVEN": "never given to the ledger",
    }
    return [("content", said[details.content_state])] if details.content_state in said else []


def _speculation(document: dict[str, Any]) -> list[tuple[str, str]]:
    block = document["spec_decode"]
    asked = "" if block["requested_method"] == block["method"] else f" (asked for {block['requested_method']})"
    fallback = f", because of {block['fallback_reason']}" if block["fallback_reason"] else ""
    why = explained(block["fallback_reason"])
    length = block["mean_acceptance_length"]
    passes = f"{block['target_passes']} passes of the target" + (f", {length:.2f} tokens each" if length else "")
    rows = [("method", f"[bold]{block['method']}[/]{asked}{fallback}: {passes}")]
    if why is not None:
        rows.append(("why not", escape(why)))
    if "passes_by_method" in block:
        rows.append(("passes by", _passes(block["passes_by_method"])))
    if block["tokens_proposed"]:
        rows.append(("drafts", f"{block['tokens_accepted']} of {block['tokens_proposed']} tokens accepted"))
    if block["wall_clock_speedup"] is not None:
        rows.append(("speedup", f"{block['wall_clock_speedup']:.2f} × off ({block['speedup_basis']})"))
    if (over := Receipt.from_document(document).overclaim) is not None:
        rows.append(("", f"[yellow]the receipt {over}, which nobody measured[/]"))
    verified = {True: "yes, replayed before signing", False: "[bold red]no[/]", None: "left to the audit"}
    return [*rows, ("identical to off", verified[block["verified_identical_to_off"]])]


def _passes(by_method: dict[str, int]) -> str:
    """Passes of the target by the method that drafted for them; off is a pass that nothing was drafted for."""
    counts = ", ".join(f"{method} {count}" for method, count in by_method.items())
    return f"{counts} (off: nothing was drafted)" if len(by_method) > 1 and "off" in by_method else counts


def _proven(details: ReceiptDetails, proof: Proof) -> list[tuple[str, str]]:
    unchecked = " (no trusted keys to check with)" if proof.signature is None else ""
    rows = [
        ("signature", f"{MARKS[proof.signature]} by a trusted key of role receipts{unchecked}"),
        ("in the log", f"{MARKS[proof.inclusion]} entry {details.receipt.index} of {proof.tree_size}{unchecked}"),
    ]
    said = [("verdict", _verdict(verdict)) for verdict in details.verdicts]
    return rows + (said or [("verdict", "not yet: no auditor has computed it again")])


def _verdict(verdict: Verdict) -> str:
    reason = f": {escape(verdict.reason)}" if verdict.reason else ""
    whose = whose_replay(verdict.verification, verdict.replayed_by)
    compared = f"{verdict.tokens_compared} tokens compared {whose} (entry {verdict.index})"
    return f"{outcome(verdict.outcome, verdict.tokens_compared)}, {compared}{reason}"
