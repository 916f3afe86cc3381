"""Principals, their credentials, and the roles that calls need."""

import json
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from services.runtime.access import Access, current_principal, tenant_of_call
from services.runtime.credentials import (
    ANONYMOUS,
    Credential,
    Principal,
    PrincipalsError,
    edited_principals,
    new_token,
    read_principals,
    token_digest,
    write_principals,
)
from services.runtime.errors import PermissionDenied, Unauthenticated, Unavailable
from tests.access import CREATED, token_of, without_credential

GENERATE = "/kolm.generation.v1.GenerationService/Generate"
WITHDRAW = "/kolm.registry.v1.RegistryService/WithdrawHead"
HEAD = "/kolm.ledger.v1.LedgerService/GetCheckpoint"
HERE, ELSEWHERE = "ipv4:127.0.0.1:5", "ipv4:10.0.0.7:5"


@dataclass
class Call:
    """A call's context, with its credentials."""

    token: str | bytes | None = None
    where: str = ELSEWHERE
    certificate: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    more: Sequence[str] = ()

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        sent = (*(() if self.token is None else (self.token,)), *self.more)
        return [("authorization", token) for token in sent]

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return self.certificate

    def peer(self) -> str:
        return self.where


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "principals.json"


def bearing(token: str, where: str = ELSEWHERE) -> Call:
    return Call(f"Bearer {token}", where)


def test_a_token_s_principal_is_found_and_an_unknown_one_is_refused(file: Path) -> None:
    token = token_of(file, "generate", tenant="acme")
    access = Access(file)
    assert access.admitted(GENERATE, bearing(token)).tenant == "acme"
    for wrong in (token[:-1], token + "x", "kolm_", "swordfish", ""):
        with pytest.raises(Unauthenticated):
            access.admitted(GENERATE, bearing(wrong))
    with pytest.raises(Unauthenticated, check=lambda error: error.reason == "BAD_TOKEN"):
        access.admitted(GENERATE, Call(f"Bearer {token}", more=[f"Bearer {token}"]))
    for sent in (f"Basic {token}", token, f"Bearer  {token}", b"\xff", f"Bearer {token}".encode()):
        with pytest.raises(Unauthenticated):
            access.admitted(GENERATE, Call(sent))


def test_a_call_open_to_every_caller_counts_for_the_caller_of_a_valid_token(file: Path) -> None:
    token = token_of(file, "generate")
    access = Access(file)
    assert access.caller_of(bearing(token)) == access.admitted(GENERATE, bearing(token)).name
    assert {access.caller_of(call) for call in (Call(), bearing(token + "x"))} == {"ipv4:10.0.0.7"}
    file.write_text("{")
    assert access.caller_of(bearing(token)) == "ipv4:10.0.0.7"


def test_a_role_that_the_rpc_does_not_take_is_refused_with_what_it_takes(file: Path) -> None:
    token = token_of(file, "generate")
    access = Access(file)
    with pytest.raises(PermissionDenied, check=lambda error: error.reason == "ROLE_MISSING"):
        access.admitted(WITHDRAW, bearing(token))


def test_a_new_token_counts_at_once_and_a_revoked_one_no_longer(file: Path) -> None:
    token = token_of(file, "operate")
    access = Access(file)
    other = token_of(file, "operate")
    assert access.admitted(WITHDRAW, bearing(other)).name == "operate"
    with edited_principals(file) as credentials:
        del credentials[0]
    with pytest.raises(Unauthenticated, check=lambda error: error.reason == "BAD_TOKEN"):
        access.admitted(WITHDRAW, bearing(token))
    access.admitted(WITHDRAW, bearing(other))


def test_an_expired_token_is_as_good_as_none(file: Path) -> None:
    now: list[datetime] = [CREATED]
    token = token_of(file, "operate", expires_at=CREATED + timedelta(hours=1))
    access = Access(file, clock=lambda: now[0])
    access.admitted(WITHDRAW, bearing(token))
    now[0] += timedelta(hours=1)
    with pytest.raises(Unauthenticated):
        access.admitted(WITHDRAW, bearing(token))


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_text("{"), lambda file: file.chmod(0o666)])
def test_while_the_file_cannot_be_read_callers_reach_only_public_rpcs(
    file: Path, harm: Callable[[Path], object]
) -> None:
    token = token_of(file, "operate")
    access = Access(file)
    kept = file.read_text()
    harm(file)
    for call in (bearing(token), Call(where=HERE)):
        with pytest.raises(Unavailable):
            access.admitted(WITHDRAW, call)
    assert access.admitted(HEAD, bearing(token)) is ANONYMOUS
    file.unlink(missing_ok=True)
    file.write_text(kept)
    file.chmod(0o600)
    access.admitted(WITHDRAW, bearing(token))


def test_a_server_does_not_start_over_a_file_that_is_no_good(file: Path) -> None:
    with pytest.raises(PrincipalsError):
        Access(file)


def test_without_principals_the_token_of_this_start_generates_for_the_default_tenant_and_nothing_does_more() -> None:
    token = new_token()
    access = Access(local=token)
    local = access.admitted(GENERATE, bearing(token))
    assert (local.tenant, local.roles, local.authenticated) == ("default", {"generate"}, False)
    for call, reason in ((Call(where=HERE), "TOKEN_REQUIRED"), (bearing("kolm_guess", HERE), "BAD_TOKEN")):
        with pytest.raises(Unauthenticated) as refused:
            access.admitted(GENERATE, call)
        assert refused.value.reason == reason
        with pytest.raises(Unauthenticated):
            Access().admitted(GENERATE, call)
    for call in (bearing(token), Call(where=HERE)):
        with pytest.raises(PermissionDenied) as denied:
            access.admitted(WITHDRAW, call)
        assert denied.value.reason == "NO_PRINCIPALS"
    assert access.admitted(HEAD, Call()) is ANONYMOUS


def test_with_principals_callers_without_a_token_have_the_roles_of_anybody(file: Path) -> None:
    write_principals(file, [])
    access = Access(file, local="kolm_local")
    for call in (Call(), Call(where=HERE), bearing("kolm_local", HERE)):
        with pytest.raises(Unauthenticated):
            access.admitted(GENERATE, call)
    write_principals(file, [without_credential("generate")])
    for call in (Call(), Call(where=HERE)):
        assert access.admitted(GENERATE, call).name == "anonymous"
    with pytest.raises(Unauthenticated):
        access.admitted(GENERATE, bearing("kolm_guess", HERE))


def test_a_certificate_s_names_are_principals(file: Path) -> None:
    generation, auditor = (
        Credential(name=name, tenant=None, roles=("append",), certificate=name, created_at=CREATED)
        for name in ("generation", "auditor")
    )
    write_principals(file, [generation, auditor, without_credential("generate")])
    access = Access(file)
    append = "/kolm.ledger.v1.LedgerService/AppendEntry"
    for shown in ({"x509_common_name": [b"generation"]}, {"x509_subject_alternative_name": [b"a", b"generation"]}):
        assert access.admitted(append, Call(certificate=shown)).name == "generation"
    several = {"x509_subject_alternative_name": [b"http", b"generation", b"auditor"]}
    with pytest.raises(Unauthenticated, check=lambda error: error.reason == "BAD_CERTIFICATE"):
        access.admitted(append, Call(certificate={"x509_common_name": [b"http"], **several}))
    assert access.admitted(append, Call(certificate={"x509_common_name": [b"auditor"], **several})).name == "auditor"
    for shown in ({"x509_common_name": [b"other"]}, {"x509_common_name": [b"\xff"]}, {"peer": [b"generation"]}):
        with pytest.raises(Unauthenticated):
            access.admitted(append, Call(certificate=shown))
    with pytest.raises(Unauthenticated):  # a wrong token is no reason to look further
        access.admitted(append, Call("Bearer kolm_x", certificate={"x509_common_name": [b"generation"]}))


def test_an_rpc_that_is_not_in_the_table_is_refused_to_every_caller(file: Path) -> None:
    token = token_of(file, "audit")
    with pytest.raises(PermissionDenied, check=lambda error: error.reason == "NOT_PERMITTED"):
        Access(file).admitted("/kolm.ledger.v1.LedgerService/Forgotten", bearing(token))


@pytest.mark.parametrize(
    ("tenant", "named", "acts_for"),
    [
        ("acme", "", "acme"),
        ("acme", "acme", "acme"),
        ("acme", "other", None),
        ("acme", "ACME", None),
        (None, "", "default"),
        (None, "any", "any"),
    ],
)
def test_the_tenant_is_the_principal_s(tenant: str | None, named: str, acts_for: str | None) -> None:
    called = copy_context()
    called.run(current_principal.set, Principal("app", tenant, frozenset({"generate"})))
    if acts_for is not None:
        assert called.run(tenant_of_call, named) == acts_for
        return
    with pytest.raises(PermissionDenied) as caught:
        called.run(tenant_of_call, named)
    assert caught.value.reason == "FOREIGN_TENANT"


def test_outside_of_a_call_there_is_no_caller() -> None:
    assert current_principal.get() is ANONYMOUS
    assert not ANONYMOUS.roles
    assert not ANONYMOUS.sees("")
    assert not ANONYMOUS.reads_content("")


def test_a_token_is_recognised_and_has_256_random_bits() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"kolm_[A-Za-z0-9_-]{43}", token) for token in tokens)


def test_the_file_has_digests_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "principals.json"
    token = token_of(file, "generate", tenant="acme")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token.removeprefix("kolm_") not in file.read_text()
    (credential,) = read_principals(file)
    assert (credential.token_sha256, credential.id) == (token_digest(token), token_digest(token)[:12])
    assert (credential.principal.tenant, credential.principal.roles) == ("acme", {"generate"})


def test_edits_follow_each_other_and_one_that_fails_changes_nothing(file: Path) -> None:
    token_of(file, "read")

    def fail_halfway() -> None:
        with edited_principals(file) as credentials:
            credentials.clear()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fail_halfway()
    token_of(file, "audit")
    assert [each.roles for each in read_principals(file)] == [("read",), ("audit",)]
    assert {path.name for path in file.parent.iterdir()} == {"principals.json", ".principals.json.lock"}


def _changed(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["credentials"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_changed(roles=["root"]), "credentials.0.roles.0"),
        (_changed(certificate="a name"), "exactly one of"),
        (_changed(token_sha256=None), "exactly one of"),
        (_changed(token_sha256="kolm_" + "x" * 43), "token_sha256"),
        *((_changed(tenant=tenant), "tenant") for tenant in ("", "red\x1b[31m", "a\nb", "\u202eevil")),
        (_changed(created_at="2026-01-01T00:00:00"), "created_at"),
        (_changed(password="hush"), "password"),
        (lambda document: document["credentials"].append(document["credentials"][0]), "duplicate credential"),
        (lambda document: document.update(type="kolm.principals.v2"), "type"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name_and_shows_nothing(
    file: Path, change: Callable[[dict[str, Any]], object], why: str
) -> None:
    token_of(file, "read")
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(PrincipalsError, match=re.escape(why)) as caught:
        read_principals(file)
    assert "hush" not in str(caught.value)
    assert "xxxxx" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"junk", b"\xff\xfe", b"[]", b"{}" * 2, b"[" * 10_000])
def test_junk_is_refused(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    with pytest.raises(PrincipalsError):
        read_principals(file)


def test_a_file_that_others_may_write_is_not_believed(file: Path) -> None:
    write_principals(file, [without_credential("generate")])
    file.chmod(0o620)
    with pytest.raises(PrincipalsError):
        read_principals(file)


def test_a_credential_ends_when_it_says() -> None:
    end = CREATED + timedelta(days=1)
    credential = Credential(
        name="a", tenant=None, roles=("read",), certificate="a.example", created_at=CREATED, expires_at=end
    )
    assert credential.valid_at(end - timedelta(microseconds=1))
    assert not credential.valid_at(end)
    assert not credential.valid_at(datetime(2100, 1, 1, tzinfo=UTC))
