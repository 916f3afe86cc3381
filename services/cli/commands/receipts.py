"""`kolm receipts`: what was served, for whom, how, and what audits said about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from services.cli.failures import exits
from services.cli.options import options

if TYPE_CHECKING:
    from services.client.ledger.log import ReceiptQuery
from services.cli.values.named_files import expect_room


@dataclass(frozen=True, slots=True)
class Filters:
    """Which receipts to list: those that match every one that is given."""

    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.")] = None
    method: Annotated[str | None, typer.Option(help="Only those served with this method.")] = None
    base: Annotated[str | None, typer.Option(metavar="CID", help="Only those of this base.")] = None
    head: Annotated[str | None, typer.Option(metavar="CID", help="Only those that used this draft head.")] = None
    adapter: Annotated[str | None, typer.Option(metavar="CID", help="Only those with this adapter.")] = None
    profile: Annotated[str | None, typer.Option(metavar="CID", help="Only those of this numerics profile.")] = None
    outcome: Annotated[
        str | None,
        typer.Option(metavar="EXACT|DEVIATION|UNREPLAYABLE", help="Only those whose newest verdict is this one."),
    ] = None
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only those issued then or later; UTC.")] = None
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only those issued before this time; UTC.")] = None
    first: Annotated[int | None, typer.Option(min=0, metavar="ENTRY", help="From this entry of the log on.")] = None
    last: Annotated[int | None, typer.Option(min=0, metavar="ENTRY", help="Up to this entry of the log.")] = None
    commitment: Annotated[
        str | None,
        typer.Option(metavar="sha256:HEX", help="Only those that commit to this prompt or output."),
    ] = None
    request_id: Annotated[str | None, typer.Option(help="Only those of this request.")] = None

    def query(self) -> ReceiptQuery:
        """Raises UsageError for a time that is none."""
        from services.cli.values.parsing import moment
        from services.client.ledger.log import ReceiptQuery

        return ReceiptQuery(
            tenant=self.tenant,
            method=self.method,
            base_cid=self.base,
            head_cid=self.head,
            adapter_cid=self.adapter,
            profile_cid=self.profile,
            request_id=self.request_id,
            outcome=self.outcome,
            start_time=None if self.since is None else moment("--since", self.since),
            end_time=None if self.until is None else moment("--until", self.until),
            min_index=self.first,
            max_index=self.last,
            commitment=self.commitment,
        )


ANY = Filters()


def list_(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many; the newest is last.")] = 20,
    filters: Filters = ANY,
    prove: Annotated[
        bool, typer.Option("--prove", help="Check that each is signed and in the signed log. Exit code 3 if not.")
    ] = False,
    complete: Annotated[
        bool, typer.Option("--complete", help="Check as well that none of the newest was left out.")
    ] = False,
    remember: options.Remember = None,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """List the newest receipts that match every filter."""
    from services.cli.jobs.receipts.receipt_search import proven_search, search
    from services.client import LedgerClient

    query = filters.query()
    with LedgerClient.connect(ledger) as client:
        if prove or complete or remember is not None:
            keys = home.trusted
            found = proven_search(client, query, limit, keys, remember, complete=complete)
        else:
            found = search(client, query, limit)

    from services.cli.terminal.output import answer, talk
    from services.cli.views.receipts.documents import receipt_json
    from services.cli.views.receipts.receipts import list_view, proven_view

    answer(json, lambda: [receipt_json(each) for each in found.receipts], lambda: list_view(found.receipts))
    if found.proven_in is not None:
        talk().print(proven_view(len(found.receipts), found.proven_in, complete=complete))


def export(
    receipt: options.Receipt,
    path: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    format_name: Annotated[
        Literal["file", "cose"],
        typer.Option("--format", help="A receipt file, or a SCITT transparent statement."),
    ] = "file",
    key: Annotated[
        Path | None,
        typer.Option(help="The key that signs a statement, or a PKCS#11 URI. Default: <data-dir>/keys/receipts.pem."),
    ] = None,
    key_passphrase_file: options.KeyPassphrase = None,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Write one receipt: with its content, for `kolm replay`, or as a signed statement without."""
    from ledger.keys.signer import open_signer
    from services.cli.jobs.receipts.receipt_export import export_receipt
    from services.cli.jobs.receipts.statement_export import export_statement
    from services.cli.terminal.output import answer
    from services.client import LedgerClient

    expect_room("PATH", path)
    if format_name != "file":
        with LedgerClient.connect(ledger) as client:
            signer = open_signer(home.key("receipts", key), "receipts", key_passphrase_file)
            made = export_statement(client, receipt, path, signer, home.trusted)
        signed = f"wrote {path}, a statement by {made.issuer}"
        answer(json, lambda: {"path": str(path), "receipt_id": made.receipt_id, "issuer": made.issuer}, lambda: signed)
        return
    if key is not None:
        raise exits.UsageError("--key: signs a statement; a receipt file is not signed anew")
    with LedgerClient.connect(ledger) as client:
        written = export_receipt(client, receipt, path)
    held = f"wrote {path}, which holds the tokens of prompt and answer"
    said = f"{held}; with the base anybody can replay it: kolm replay {path} --model …"
    answer(json, lambda: {"path": str(path), "receipt_id": written}, lambda: said)


def promised(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `kolm generate --promise` kept.", dir_okay=False)],
    remember: options.Remember = None,
    answer_file: Annotated[
        Path | None,
        typer.Option("--answer", metavar="FILE", help="Keep the log's signed word that receipts are missing here."),
    ] = None,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Whether the log holds the receipts that were promised before an answer. Exit code 3 if due and missing."""
    from datetime import UTC, datetime

    from services.cli.jobs.receipts.promises import check_promise
    from services.cli.jobs.receipts.receipt_export import write_new
    from services.cli.terminal.output import answer
    from services.cli.views.receipts.promises import promised_json, promised_view
    from services.client import LedgerClient

    with LedgerClient.connect(ledger) as client:
        found = check_promise(client, file, home.trusted, remember, datetime.now(UTC))
    if answer_file is not None and found.answer is not None:
        write_new(answer_file, found.answer.envelope)
    answer(json, lambda: promised_json(found), lambda: promised_view(found))
    raise typer.Exit(exits.VERIFICATION_FAILED if found.state == "BROKEN" else exits.OK)


def show(
    receipt: options.Receipt,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Show one receipt and check its signature and its place in the log. Exit code 3 if either is wrong."""
    from services.cli.jobs.receipts.receipt_proof import find, prove
    from services.cli.terminal.output import answer
    from services.cli.views.receipts.documents import details_json
    from services.cli.views.receipts.receipts import receipt_view
    from services.client import LedgerClient

    with LedgerClient.connect(ledger) as client:
        details = find(client, receipt)
        proof = prove(details, home.trusted)
    answer(json, lambda: details_json(details) | {"proof": asdict(proof)}, lambda: receipt_view(details, proof))
    raise typer.Exit(exits.OK if proof.ok else exits.VERIFICATION_FAILED)
