"""`kolm ledger erase`: removes the content of a receipt; the receipt and every proof over it stay."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import options


def erase(
    receipt: options.Receipt,
    reason: Annotated[
        str | None, typer.Option(help="The reason; goes into the log for good, and everybody can read it.")
    ] = None,
    as_tenant: Annotated[
        bool, typer.Option("--as-tenant", help="Ask with a token of the receipt's tenant; the log signs that you did.")
    ] = False,
    operator_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The operator's key. Default: <data-dir>/keys/operator.pem.")
    ] = None,
    key_passphrase_file: options.KeyPassphrase = None,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Erase the token ids and salts of a receipt, with a signed record of that in the log. Cannot be undone."""
    from services.cli.failures.exits import UsageError
    from services.cli.jobs.ledger.erasure import erase_content, erase_own
    from services.cli.jobs.receipts.receipt_proof import find
    from services.cli.jobs.resumes import operator_key as load_operator_key
    from services.cli.terminal.output import answer
    from services.cli.views.receipts.receipts import erased_view
    from services.client import LedgerClient

    if as_tenant == (reason is not None):
        raise UsageError("expected --reason, of an operator, or --as-tenant, which states none")
    keys = home.trusted
    with LedgerClient.connect(ledger) as client:
        found = find(client, receipt).receipt
        if reason is None:
            erased = erase_own(client, found, keys)
        else:
            signing = load_operator_key(home.key("operator", operator_key), keys, key_passphrase_file, client)
            erased = erase_content(client, found, signing, reason, keys)
    answer(json, lambda: asdict(erased), lambda: erased_view(erased))
