"""Draft heads: one, a list of them, and what has been done with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from ledger.documents.draft_head_manifest import DraftHeadManifest
from services.cli.terminal.output import MARKS, facts, size, table
from services.cli.terminal.steering import printable

if TYPE_CHECKING:
    from services.cli.jobs.heads.fetching import Checked
    from services.cli.jobs.heads.publishing import Pushed
    from services.client.registry import Head, KScore

_CHECKS = (
    "The manifest is well-formed and names its base",
    "A trusted publisher has signed its publication",
    "The publication stands in the signed log",
    "Every file has the size and digest of the manifest",
    "No publisher has withdrawn it",
)


def head_json(head: Head) -> dict[str, Any]:
    """A head with its full identifiers and its manifest."""
    return {
        "head_cid": head.head_cid,
        "base_cid": head.base_cid,
        "size": head.size,
        "names": list(head.names),
        "publications": [
            {
                "name": each.name,
                "publisher": each.publisher,
                "issued_at": each.issued_at.isoformat(),
                "ledger_index": each.ledger_index,
            }
            for each in head.publications
        ],
        "withdrawal": None
        if head.withdrawal is None
        else {
            "reason": head.withdrawal.reason,
            "issued_at": head.withdrawal.issued_at.isoformat(),
            "ledger_index": head.withdrawal.ledger_index,
        },
        "kscores": [
            {
                "adapter_cid": score.adapter_cid,
                "mean_acceptance": score.mean_acceptance,
                "status": score.status,
                "ledger_index": score.ledger_index,
            }
            for score in head.kscores
        ],
        "manifest": DraftHeadManifest.from_bytes(head.manifest).to_document(),
    }


def list_view(heads: Sequence[Head]) -> RenderableType:
    """One line for each head."""
    if not heads:
        return "no heads"
    made = table("name", "head", "base", "size", "published", "by", "k-score", right=("size", "k-score"))
    for head in heads:
        made.add_row(
            escape(", ".join(head.names)),
            _digits(head.head_cid),
            _digits(head.base_cid),
            size(head.size),
            _dates(head),
            escape(head.publications[0].publisher),
            _score(head.kscores[0]) if head.kscores else "[dim]–[/]",
        )
    return made


def head_view(head: Head) -> RenderableType:
    """All that is on record about one head."""
    manifest = DraftHeadManifest.from_bytes(head.manifest)
    layers = ", ".join(map(str, manifest.feature_layers))
    made = facts(
        ("head", head.head_cid),
        ("base", head.base_cid),
        ("reads", f"features of layers {layers}, drafts {manifest.draft_vocab_size} of {manifest.vocab_size}"),
    )
    for part in manifest.files:
        made.add_row(escape(part.name), f"{size(part.size)}, {part.digest}")
    for each in head.publications:
        made.add_row("published", f"{escape(each.name)} by {escape(each.publisher)}, entry {each.ledger_index}")
    for score in head.kscores:
        who = "the bare base" if score.adapter_cid is None else score.adapter_cid
        made.add_row("k-score", f"{_score(score)} for {who}, entry {score.ledger_index}")
    if head.withdrawal is not None:
        made.add_row("[red]withdrawn[/]", f"{escape(head.withdrawal.reason)}, entry {head.withdrawal.ledger_index}")
    return made


def checked_json(checked: Checked) -> dict[str, Any]:
    """A head whose files and signatures were checked; `withdrawn` is null if the ledger could not be asked."""
    publication, manifest = checked.head.publication, checked.head.manifest
    return {
        "head_cid": checked.head.cid,
        "name": publication.name,
        "base_cid": manifest.subject,
        "publisher": publication.publisher,
        "issued_at": publication.issued_at,
        "ledger_index": checked.head.index,
        "tree_size": checked.head.tree_size,
        "size": manifest.size,
        "withdrawn": checked.withdrawn,
        "folder": None if checked.folder is None else str(checked.folder),
    }


def checked_view(checked: Checked) -> RenderableType:
    """The checklist: all have passed, but withdrawals may be unknown."""
    *held, asked = _CHECKS
    rows = [(MARKS[True], title) for title in held]
    rows.append((MARKS[None if checked.withdrawn is None else True], asked))
    return Group(facts(*rows), Text(f"{checked.head.publication.name}: {checked.head.cid}"))


def pushed_json(pushed: Pushed) -> dict[str, Any]:
    """The head, whether it is new under its name, and the files that were uploaded."""
    return head_json(pushed.head) | {"created": pushed.created, "sent": list(pushed.sent)}


def pushed_view(pushed: Pushed, name: str) -> RenderableType:
    """Where the publication stands in the ledger."""
    index = next(each.ledger_index for each in pushed.head.publications if each.name == name)
    verb = "published" if pushed.created else "was published already:"
    return f"{verb} {name}, entry {index}\n{pushed.head.head_cid}"


def withdrawn_view(head: Head, *, again: bool) -> RenderableType:
    """Where the withdrawal stands in the ledger; `again` if it was there before."""
    assert head.withdrawal is not None
    verb = "was withdrawn already" if again else "withdrawn"
    place, why = head.withdrawal.ledger_index, printable(head.withdrawal.reason)
    return f"{verb}, entry {place}: {why}\n{head.head_cid}"


def _digits(identifier: str) -> str:
    """As many as a row has room for; `name@sha256:<digits>` takes them."""
    return f"{identifier.removeprefix('cidv1:sha256:')[:8]}…"


def _dates(head: Head) -> str:
    published = f"{head.publications[0].issued_at:%Y-%m-%d}"
    return (
        published if head.withdrawal is None else f"{published} [red]withdrawn {head.withdrawal.issued_at:%Y-%m-%d}[/]"
    )


def _score(score: KScore) -> str:
    style = "green" if score.status == "GOOD" else "yellow"
    words = "" if score.status == "GOOD" else " needs retraining"
    return f"[{style}]{score.mean_acceptance:.2f}{words}[/]"
