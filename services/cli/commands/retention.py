"""`kolm retention`: how long the ledger keeps the contents of receipts, signed by an operator and on record."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from services.cli.failures.exits import UsageError
from services.cli.options import options


def retention(
    days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Keep contents this many days from a receipt's issue.")
    ] = None,
    forever: Annotated[bool, typer.Option("--forever", help="Keep them without limit.")] = False,
    tenant: Annotated[
        str | None, typer.Option(help="For this tenant. Default: for all that have no policy of their own.")
    ] = None,
    operator_key: options.OperatorKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Show the policies in force and what the ledger has erased by them, checked; with --days or --forever, put one on
    record. The ledger erases what it ends, also of earlier receipts; that cannot be undone.
    """
    from services.cli.jobs.resumes import operator_key as load_operator_key
    from services.cli.jobs.retention import retention_state, set_retention
    from services.cli.terminal.output import answer
    from services.cli.views.log.retention import set_view, state_json, state_view
    from services.client import LedgerClient

    if days is not None and forever:
        raise UsageError("--days and --forever: name one of them")
    keys = home.trusted
    with LedgerClient.connect(ledger) as client:
        if days is None and not forever:
            if tenant is not None:
                raise UsageError("--tenant: is whom a policy is for; expected --days N or --forever beside it")
            state = retention_state(client, keys)
            return answer(json, lambda: state_json(state), lambda: state_view(state))
        signing = load_operator_key(home.key("operator", operator_key), keys, key_passphrase_file, client)
        policy = set_retention(client, tenant, days, signing, keys)
    answer(json, lambda: asdict(policy), lambda: set_view(policy))
