"""The page of retention over a real ledger."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ledger.documents.signed_document import sign_document
from ledger.errors import SignatureError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from services.client import LedgerClient
from services.client.ledger.verified import VerifiedLedger
from services.explorer.log_page import RetentionPage
from services.explorer.pages import Pages, Source
from tests.integration.auditor.deployment import Deployment, opened_deployment
from tests.unit.ledger.builders import expiry, retention, signed


def shown(deployment: Deployment, trusted: TrustedKeys) -> str:
    source = Source(deployment.ledger, VerifiedLedger(deployment.ledger, trusted), trusted)
    request: Any = None
    body = bytes(RetentionPage(source, Pages(source.freshness)).answer(request).body).decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body.split("<main")[1]))


def test_policies_and_what_came_of_them_are_shown(tmp_path: Path) -> None:
    with opened_deployment(tmp_path) as deployment:
        trusted = TrustedKeys.load(tmp_path / "trusted")
        assert "There is no policy: contents are kept without limit." in shown(deployment, trusted)
        deployment.receive(0)
        with LedgerClient.connect(deployment.address) as operator:
            for policy in (retention(30), retention(1, "acme <b>"), retention(None, "acme <b>")):
                operator.append(signed(policy))
        log = SigningKey.load(tmp_path / "keys/log.pem", "log")
        deployment.ledger.append(sign_document(expiry(1, 1, except_tenants=("acme <b>",)), log).to_bytes())
        text = shown(deployment, trusted)
        assert "30 days for all tenants without a policy of their own (entry 1)" in text
        assert "without limit for acme &lt;b&gt; (entry 3)" in text
        assert "Every policy, and 1 entry by which the log has erased contents" in text
        assert "erased what was issued before 2026-01-02 03:04:06, by entry 1" in text

        without = TrustedKeys({**trusted.by_role, "operator": ()})
        with pytest.raises(SignatureError):
            shown(deployment, without)
