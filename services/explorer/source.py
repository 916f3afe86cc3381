"""What the pages are made from: a ledger, and what is trusted when its word is checked."""

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
