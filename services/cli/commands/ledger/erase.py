"""`kolm ledger erase`: the content of a receipt goes, the receipt and every proof over it stay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import options


def erase(
    receipt: Annotated[str, typer.Argument(help="A receipt's id, or the index of its entry.")],
    reason: Annotated[str, typer.Option(help="Why; goes into the log, for good and for everybody to read.")],
    operator_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The operator's key. Default: <data-dir>/keys/operator.pem."),
    ] = None,
    operator_secret: Annotated[
        str | None,
        typer.Option(envvar="KOLM_OPERATOR_SECRET", metavar="SECRET", help="Where the ledger asks operators for one."),
    ] = None,
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    json: options.Json = False,
) -> None:
    """Erase the token ids and salts of a receipt, and put on record, signed, that they were. Cannot be undone."""
    from services.cli.jobs.ledger.erasure import erase_content
    from services.cli.jobs.receipt_proof import find
    from services.cli.jobs.resumes import operator_key as load_operator_key
    from services.cli.jobs.trust import trusted_directory
    from services.cli.output import data, print_json
    from services.client import LedgerClient

    keys = trusted_directory(trusted, data_dir)
    with LedgerClient.connect(ledger, operator=True, operator_secret=operator_secret) as client:
        found = find(client, receipt).receipt
        signing = load_operator_key(operator_key or data_dir / "keys" / "operator.pem", keys)
        erased = erase_content(client, found, signing, reason, keys)
    if json:
        print_json(erased.to_json())
    else:
        proven = ", proven" if erased.proven else ""
        data().print(
            f"erased the content of {erased.receipt_id} (entry {erased.receipt_index}); "
            f"the erasure is entry {erased.erasure_index}{proven}"
        )
