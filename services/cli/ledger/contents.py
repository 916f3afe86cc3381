"""`kolm ledger erase` and `kolm retention`: contents of receipts, erased one by one or by age."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ledger.documents.erasure import Erasure, Expiry, Retention, in_force
from ledger.documents.signed_document import open_document, sign_document
from ledger.encoding.text_forms import timestamp
from ledger.keys.signer import Signer
from services.cli.frame import options
from services.cli.frame.exits import UsageError
from services.cli.frame.options import ledger_at
from services.cli.frame.output import answer
from services.cli.frame.views import Column, View, counted, table
from services.cli.ledger.receipt_files import find
from services.cli.trust import load_trusted
from services.cli.trust import operator_key as load_operator_key
from services.client import LedgerClient
from services.client.ledger.log import ReceiptEntry
from services.client.ledger.verified import VerifiedLedger


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
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Erase the token ids and salts of a receipt, with a signed record of that in the log. Cannot be undone."""
    if as_tenant == (reason is not None):
        raise UsageError("expected --reason, of an operator, or --as-tenant, which states none")
    keys = paths.trusted
    with ledger_at(ledger) as client:
        found = find(client, receipt).receipt
        if reason is None:
            erased = erase_own(client, found, keys)
        else:
            signing = load_operator_key(paths.key("operator", operator_key), keys, key_passphrase_file, client)
            erased = erase_content(client, found, signing, reason, keys)
    said = (
        f"erased the content of {erased.receipt_id} (entry {erased.receipt_index}); "
        f"the erasure is entry {erased.erasure_index}{', proven' if erased.proven else ''}"
    )
    answer(json, asdict(erased), lambda _: said)


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
    paths: options.Paths = options.PATHS,
    json: options.Json = False,
) -> None:
    """Show the policies in force and what the ledger has erased by them, checked; with --days or --forever, put one on
    record. The ledger erases what it ends, also of earlier receipts; that cannot be undone.
    """
    if days is not None and forever:
        raise UsageError("--days and --forever: name one of them")
    keys = paths.trusted
    with ledger_at(ledger) as client:
        if days is None and not forever:
            if tenant is not None:
                raise UsageError("--tenant: is whom a policy is for; expected --days N or --forever beside it")
            return answer(json, retention_state(client, keys), _state_view)
        signing = load_operator_key(paths.key("operator", operator_key), keys, key_passphrase_file, client)
        policy = set_retention(client, tenant, days, signing, keys)
    kept = f"contents of {_whose(tenant)} are kept {_how_long(days)}"
    answer(json, policy, lambda made: f"entry {made['index']}: {kept}")


@dataclass(frozen=True, slots=True)
class Erased:
    """The entries of a receipt and of its erasure; `proven` if there were keys to check the ledger's answer with."""

    receipt_id: str
    receipt_index: int
    erasure_index: int
    proven: bool


def erase_content(ledger: LedgerClient, receipt: ReceiptEntry, key: Signer, reason: str, trusted: Path) -> Erased:
    """Returns once the content is gone. Raises KolmError, FormatError, ProofError if the answer does not hold."""
    document = Erasure(receipt.receipt_id, receipt.index, reason, timestamp(datetime.now(UTC)))
    envelope = sign_document(document, key).to_bytes()
    proving = trusted.is_dir()
    answer = VerifiedLedger(ledger, load_trusted(trusted)).erase(envelope) if proving else ledger.erase(envelope)
    return Erased(receipt.receipt_id, receipt.index, answer.index, proving)


def erase_own(ledger: LedgerClient, receipt: ReceiptEntry, trusted: Path) -> Erased:
    """The same for the receipt's tenant, by its token. Raises KolmError, LedgerError if the answer does not hold."""
    proving = trusted.is_dir()
    asked = VerifiedLedger(ledger, load_trusted(trusted)) if proving else ledger
    return Erased(receipt.receipt_id, receipt.index, asked.erase_own(receipt.receipt_id).index, proving)


def set_retention(
    ledger: LedgerClient, tenant: str | None, days: int | None, key: Signer, trusted: Path
) -> dict[str, Any]:
    """The policy, once it stands in the log; `days` None is without limit, `tenant` None all without one of their own.

    Raises KolmError, LedgerError.
    """
    document = Retention(tenant, days, timestamp(datetime.now(UTC)))
    envelope = sign_document(document, key).to_bytes()
    appended = VerifiedLedger(ledger, load_trusted(trusted)).append(envelope)
    return _policy(appended.index, document)


def retention_state(ledger: LedgerClient, trusted: Path) -> dict[str, Any]:
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
        return f"what was issued before {expiry['issued_before']} (entry {expiry['index']})"

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
