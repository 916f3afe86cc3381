"""`kolm ledger erase` and `kolm retention`: contents of receipts, erased one by one or by age."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from ledger.documents.erasure import Erasure, Expiry, Retention, in_force
from ledger.documents.signed_document import open_document, sign_document
from ledger.encoding.text_forms import timestamp
from services.cli.frame import options
from services.cli.frame.exits import UsageError
from services.cli.frame.options import ledger_at
from services.cli.frame.output import answer
from services.cli.frame.values import expect_name
from services.cli.frame.views import Column, View, counted, table
from services.cli.ledger.receipt_files import find
from services.cli.trust import load_trusted
from services.cli.trust import operator_key as load_operator_key
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.verified import VerifiedLedger


def erase(
    receipt: options.Receipt,
    reason: Annotated[str | None, Option(help="The reason, which stays in the log for every reader.")] = None,
    as_tenant: Annotated[
        bool, Option("--as-tenant", help="Ask with a token of the receipt's tenant; the log signs the request.")
    ] = False,
    operator_key: Annotated[
        Path | None, Option(metavar="FILE", help="The operator's key. Default: <data-dir>/keys/operator.pem.")
    ] = None,
    key_passphrase_file: options.KeyPassphrase = None,
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Erase token ids and salts of a receipt, with a signed record in the log. Cannot be undone."""
    if as_tenant == (reason is not None):
        raise UsageError("expected either --reason, as operator, or --as-tenant")
    with ledger_at(ledger) as client:
        found = find(client, receipt).receipt
        checking = VerifiedLedger(client, load_trusted(paths.trusted)) if paths.trusted.is_dir() else None
        if reason is None:
            erased = (checking or client).erase_own(found.receipt_id)
        else:
            signing = load_operator_key(paths.key("operator", operator_key), paths.trusted, key_passphrase_file, client)
            document = Erasure(found.receipt_id, found.index, reason, timestamp(datetime.now(UTC)))
            erased = (checking or client).erase(sign_document(document, signing).to_bytes())
    proven = checking is not None  # with keys to check the ledger's answer
    places = {"receipt_id": found.receipt_id, "receipt_index": found.index, "erasure_index": erased.index}
    line = f"erased the content of {found.receipt_id} (entry {found.index}); the erasure is entry {erased.index}"
    answer(json, places | {"proven": proven}, lambda _: f"{line}{', proven' if proven else ''}")


def retention(
    days: Annotated[
        int | None, Option(min=1, max=36_500, help="Keep contents this many days from a receipt's issue.")
    ] = None,
    forever: Annotated[bool, Option("--forever", help="Keep contents without limit.")] = False,
    tenant: Annotated[
        str | None, Option(help="Tenant of the policy. Default: all without a policy of their own.")
    ] = None,
    operator_key: options.OperatorKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Show the policies in force and the erasures by them, checked; with --days or --forever, put a policy on record.
    The ledger then erases expired contents, also of earlier receipts; that cannot be undone.
    """
    if days is not None and forever:
        raise UsageError("--days and --forever: name one of them")
    if tenant is not None:
        expect_name("--tenant", tenant)
    keys = paths.trusted
    with ledger_at(ledger) as client:
        if days is None and not forever:
            if tenant is not None:
                raise UsageError("--tenant: needs --days N or --forever, the policy for this tenant")
            return answer(json, _retention_state(client, keys), _state_view)
        signing = load_operator_key(paths.key("operator", operator_key), keys, key_passphrase_file, client)
        document = Retention(tenant, days, timestamp(datetime.now(UTC)))
        appended = VerifiedLedger(client, load_trusted(keys)).append(sign_document(document, signing).to_bytes())
    kept = f"contents of {_whose(tenant)} are kept {_how_long(days)}"
    answer(json, _policy(appended.index, document), lambda made: f"entry {made['index']}: {kept}")


def _retention_state(ledger: LedgerClient, trusted: Path) -> dict[str, Any]:
    """The policies in force, the general one first, and the newest expiry of each with its index.

    Raises KolmError, and LedgerError for an entry that is not signed by a trusted key.
    """
    keys = load_trusted(trusted)
    policies: list[tuple[int, Retention]] = []
    expiries: dict[str | None, dict[str, Any]] = {}
    with ledger.watch(kinds=("retention", "expiry")) as entries:
        for entry in entries:
            match open_document(entry.envelope, keys, entry.index):
                case Retention() as policy:
                    policies.append((entry.index, policy))
                case Expiry() as expiry:
                    expiries[expiry.tenant] = {"index": entry.index} | expiry.to_document()
    newest = sorted(in_force(policies).values(), key=lambda policy: policy[1].tenant or "")
    return {"policies": [_policy(*each) for each in newest], "expiries": list(expiries.values())}


def _policy(index: int, policy: Retention) -> dict[str, Any]:
    return {"index": index, "tenant": policy.tenant, "days": policy.days, "issued_at": policy.issued_at}


def _state_view(state: dict[str, Any]) -> View:
    erased = {expiry["tenant"]: expiry for expiry in state["expiries"]}

    def last(policy: dict[str, Any]) -> str:
        expiry = erased.get(policy["tenant"])
        if expiry is None:
            return "nothing"
        return f"issued before {expiry['issued_before']} (entry {expiry['index']})"

    return table(
        state["policies"],
        Column("entry", "index", right=True),
        Column("tenant", lambda policy: _whose(policy["tenant"])),
        Column("kept", lambda policy: _how_long(policy["days"])),
        Column("set", "issued_at"),
        Column("erased so far", last),
        empty="no policy: contents are kept without limit",
    )


def _whose(tenant: str | None) -> str:
    return "all without one of their own" if tenant is None else tenant


def _how_long(days: int | None) -> str:
    return "without limit" if days is None else counted(days, "day")
