"""Tokens and the file of principals: what is kept, what is refused, and that nothing of it is a secret."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from services.runtime.credentials import (
    Credential,
    PrincipalsError,
    edited_principals,
    new_token,
    read_principals,
    token_digest,
    write_principals,
)
from tests.access import CREATED, anybodys, token_of


def test_a_token_is_recognised_and_has_256_random_bits() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"kolm_[A-Za-z0-9_-]{43}", token) for token in tokens)


def test_the_file_has_digests_and_nobody_else_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "principals.json"
    token = token_of(file, "generate", tenant="acme")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token.removeprefix("kolm_") not in file.read_text()
    (credential,) = read_principals(file)
    assert (credential.token_sha256, credential.id) == (token_digest(token), token_digest(token)[:12])
    assert (credential.principal.tenant, credential.principal.roles) == ("acme", {"generate"})


def test_edits_follow_each_other_and_one_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "principals.json"
    token_of(file, "read")

    def fail_halfway() -> None:
        with edited_principals(file) as credentials:
            credentials.clear()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fail_halfway()
    token_of(file, "audit")
    assert [each.roles for each in read_principals(file)] == [("read",), ("audit",)]
    assert {path.name for path in tmp_path.iterdir()} == {"principals.json", ".principals.json.lock"}


def _changed(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["credentials"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_changed(roles=["root"]), "credentials.0.roles.0"),
        (_changed(certificate="a name"), "exactly one of"),
        (_changed(token_sha256=None), "exactly one of"),
        (_changed(token_sha256="kolm_" + "x" * 43), "token_sha256"),
        (_changed(tenant=""), "tenant"),
        (_changed(created_at="2026-01-01T00:00:00"), "created_at"),
        (_changed(password="hush"), "password"),
        (lambda document: document["credentials"].append(document["credentials"][0]), "stands there twice"),
        (lambda document: document.update(type="kolm.principals.v2"), "type"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name_and_shows_nothing(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], why: str
) -> None:
    file = tmp_path / "principals.json"
    token_of(file, "read")
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(PrincipalsError, match=re.escape(why)) as caught:
        read_principals(file)
    assert "hush" not in str(caught.value)
    assert "xxxxx" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"junk", b"\xff\xfe", b"[]", b"{}" * 2, b"[" * 10_000])
def test_junk_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "principals.json"
    file.write_bytes(data)
    with pytest.raises(PrincipalsError):
        read_principals(file)


def test_a_file_that_others_may_write_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "principals.json"
    write_principals(file, [anybodys("generate")])
    file.chmod(0o620)
    with pytest.raises(PrincipalsError, match="chmod go-w"):
        read_principals(file)


def test_a_credential_ends_when_it_says() -> None:
    end = CREATED + timedelta(days=1)
    credential = Credential(
        name="a", tenant=None, roles=("read",), certificate="a.example", created_at=CREATED, expires_at=end
    )
    assert credential.valid_at(end - timedelta(microseconds=1))
    assert not credential.valid_at(end)
    assert not credential.valid_at(datetime(2100, 1, 1, tzinfo=UTC))
