"""The source of the pages: a ledger, and the keys that its answers are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from ledger.keys.trusted_keys import TrustedKeys
from ledger.witness.freshness import Freshness
from ledger.witness.tlog_policy import Policy
from services.client import LedgerClient
from services.client.ledger.verified import VerifiedLedger


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

    def freshness(self) -> Freshness:
        """How old the newest cosigned checkpoint is; without a policy nobody's word counts."""
        return Freshness(datetime.now(UTC)) if self.policy is None else self.proving.freshness(self.policy)
