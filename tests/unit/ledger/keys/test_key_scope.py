"""Scopes of trusted keys. These tests write to a temporary folder: a key's file holds its scope."""

from pathlib import Path

import pytest

from ledger.documents.key_entry import KeyEntry
from ledger.documents.key_history import KeyHistory
from ledger.documents.promise import Promise, open_promise, sign_promise
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document, sign_document, sign_rotation
from ledger.encoding.text_forms import cid
from ledger.errors import FormatError, KeyFileError, SignatureError
from ledger.keys.ed25519 import PublicKey, SigningKey
from ledger.keys.envelope import sign
from ledger.keys.key_scope import EVERYTHING, KeyScope
from ledger.keys.trusted_keys import TrustedKeys
from tests.mutations import replace
from tests.unit.ledger.builders import BASE, KEYS, PROFILE, TRUSTED, at, receipt

KEY = KEYS["receipts"]
OTHER = cid(b"another")
OURS = KeyScope.of(base_cid=[BASE], profile_cid=[PROFILE], tenant=["acme", "öl & co"])
MINE = replace(receipt(), tenant="acme", base_cid=BASE, profile_cid=PROFILE)


def trusting(scope: KeyScope) -> TrustedKeys:
    return replace(TRUSTED, by_role={**TRUSTED.by_role, "receipts": (KEY.public.scoped(scope),)})


def promise_of(document: Receipt) -> Promise:
    return Promise(
        promised_at=at(0),
        due=at(9),
        tenant=document.tenant,
        request_id=document.request_id,
        nonce=None,
        base_cid=document.base_cid,
        profile_cid=document.profile_cid,
        prompt=document.prompt,
        choices=1,
    )


def test_a_key_s_file_holds_its_scope_and_is_the_same_key(tmp_path: Path) -> None:
    file = KEY.public.scoped(OURS).to_pem()
    assert (PublicKey.from_pem(file), PublicKey.from_pem(file).scope) == (KEY.public, OURS)
    assert PublicKey.from_pem(KEY.public.to_pem()).scope == EVERYTHING
    (tmp_path / "receipts-1.pub").write_bytes(file)
    (key,) = TrustedKeys.load(tmp_path).keys("receipts")
    assert (key.scope, TrustedKeys.load(tmp_path).scopes("receipts")) == (OURS, {KEY.key_id: OURS.to_document()})


@pytest.mark.parametrize("line", [b"tenat: acme\n", b"acme\n", b"tenant:\n", b"# tenant: acme\n", b"\xff\n"])
def test_a_line_that_is_not_understood_is_refused(line: bytes) -> None:
    with pytest.raises(FormatError):
        PublicKey.from_pem(line + KEY.public.to_pem())


@pytest.mark.parametrize("tenant", ["", " acme", "acme\nbase_cid: x", "\x00"])
def test_a_value_that_would_read_as_another_is_refused(tenant: str) -> None:
    with pytest.raises(FormatError):
        KeyScope.of(tenant=[tenant])


def test_a_scope_that_would_bound_nothing_and_two_of_one_key_are_refused(tmp_path: Path) -> None:
    (tmp_path / "receipts-1.pub").write_bytes(KEY.public.scoped(OURS).to_pem())
    (tmp_path / "receipts-2.pub").write_bytes(KEY.public.to_pem())
    with pytest.raises(KeyFileError):
        TrustedKeys.load(tmp_path)
    (tmp_path / "receipts-2.pub").unlink()
    (tmp_path / "auditor-1.pub").write_bytes(KEYS["auditor"].public.scoped(OURS).to_pem())
    with pytest.raises(KeyFileError):
        TrustedKeys.load(tmp_path)


@pytest.mark.parametrize("changed", [{"tenant": "globex"}, {"base_cid": OTHER}, {"profile_cid": OTHER}])
def test_a_key_speaks_for_nothing_outside_of_its_scope(changed: dict[str, str]) -> None:
    trusted, outside = trusting(OURS), replace(MINE, **changed)  # type: ignore[arg-type]
    assert open_document(sign_document(MINE, KEY), trusted) == MINE
    assert open_promise(sign_promise(promise_of(MINE), KEY).to_bytes(), trusted) == promise_of(MINE)
    with pytest.raises(SignatureError):
        open_document(sign_document(outside, KEY), trusted)
    with pytest.raises(SignatureError):
        open_promise(sign_promise(promise_of(outside), KEY).to_bytes(), trusted)


def test_a_kind_that_says_nothing_of_a_tenant_is_outside_of_every_scope() -> None:
    later = sign(b'{"type":"kolm.later.v1"}', "application/vnd.kolm.later.v1+json", KEY)
    open_document(later, trusting(EVERYTHING))
    with pytest.raises(SignatureError):
        open_document(later, trusting(KeyScope.of(tenant=["acme"])))


def test_a_key_that_replaces_another_in_the_log_has_its_scope() -> None:
    new = SigningKey.from_seed(b"\x21" * 32, "receipts")
    history = KeyHistory.of(trusting(OURS))
    entry = sign_rotation(KeyEntry("receipts", new.public, at(0), replaces=KEY.key_id), new, KEY)
    history = history.after(3, history.open(3, entry))
    assert history.open(4, sign_document(MINE, new)) == MINE
    with pytest.raises(SignatureError):
        history.open(4, sign_document(replace(MINE, tenant="globex"), new))
