"""`kolm receipts`: what was served, for whom, how, and what audits said about it."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli import exits, options

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many; the newest is last.")] = 20,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    method: Annotated[str | None, typer.Option(help="Only those served with this method.")] = None,
    request_id: Annotated[str | None, typer.Option(help="Only those of this request.")] = None,
    ledger: options.Ledger = options.LEDGER,
    json: options.Json = False,
) -> None:
    """List the newest receipts."""
    from services.cli.newest import newest_receipts
    from services.cli.output import data, print_json
    from services.cli.receipt_json import receipt_json
    from services.cli.receipt_view import list_view
    from services.client import LedgerClient

    with LedgerClient.connect(ledger) as client:
        receipts = newest_receipts(client, limit, tenant=tenant, method=method, request_id=request_id)
    if json:
        print_json([receipt_json(receipt) for receipt in receipts])
    else:
        data().print(list_view(receipts))


@app.command("show")
def show(
    receipt: Annotated[str, typer.Argument(help="A receipt's id, or the index of its entry.")],
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    json: options.Json = False,
) -> None:
    """Show one receipt and check its signature and its place in the log. Exit code 3 if either is wrong."""
    from services.cli.output import data, print_json
    from services.cli.receipt_json import details_json
    from services.cli.receipt_proof import find, prove
    from services.cli.receipt_view import receipt_view
    from services.cli.trust import trusted_directory
    from services.client import LedgerClient

    with LedgerClient.connect(ledger) as client:
        details = find(client, receipt)
        proof = prove(client, details, trusted_directory(trusted, data_dir))
    if json:
        print_json(details_json(details) | {"proof": proof.to_json()})
    else:
        data().print(receipt_view(details, proof))
    raise typer.Exit(exits.OK if proof.ok else exits.VERIFICATION_FAILED)
