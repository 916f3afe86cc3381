"""`kolm retention`: policies are signed, put on record, and shown with what came of them."""

from __future__ import annotations

import json

from tests.integration.auditor.deployment import Deployment
from tests.integration.cli.conftest import Kolm


def test_a_policy_is_set_and_shown(deployment: Deployment, kolm: Kolm) -> None:
    assert kolm("retention")[1] == "no policy: contents are kept without limit\n"
    code, out, err = kolm("retention", "--days", "30")
    assert (code, "entry 0: contents of all without one of their own are kept 30 days" in out) == (0, True), err
    assert kolm("retention", "--forever", "--tenant", "acme [b]")[0] == 0
    assert kolm("retention", "--days", "1", "--tenant", "acme [b]")[0] == 0
    shown = json.loads(kolm("retention", "--json")[1])
    said = [(policy["index"], policy["tenant"], policy["days"]) for policy in shown["policies"]]
    assert said == [(0, None, 30), (2, "acme [b]", 1)]
    assert shown["expiries"] == []
    out = kolm("retention")[1]
    assert "acme [b]" in out
    assert "1 day " in out
    assert json.loads(kolm("ledger", "verify", "--json")[1])["kinds"]["retention"] == 3


def test_what_is_no_policy_is_refused(deployment: Deployment, kolm: Kolm) -> None:
    for arguments in (("--tenant", "acme"), ("--days", "3", "--forever"), ("--days", "0"), ("--days", "36501")):
        assert kolm("retention", *arguments)[0] == 2
    assert deployment.ledger.checkpoint().tree_size == 0
