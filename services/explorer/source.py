"""The source of the pages: a ledger, and the keys that its answers are checked against."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.keys.trusted_keys import TrustedKeys
from ledger.witness.tlog_policy import Policy
from services.client import LedgerClient
from services.client.verified import VerifiedLedger


@dataclass(frozen=True, slots=True)
class Source:
    """`client` believes the ledger, `proving` asks the same ledger and believes what is proven.

    `origin` is the log's name where the configuration fixes it; `policy` names the witnesses, where there is one.
    """

    client: LedgerClient
    proving: VerifiedLedger
    trusted: TrustedKeys
    origin: str | None = None
    policy: Policy | None = None
