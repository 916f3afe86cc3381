"""Keys whose word is bounded: several operators for one document, and keys that speak for some tenants or bases."""

from pathlib import Path

import pytest

from ledger.documents.key_entry import KeyEntry
from ledger.documents.key_history import KeyHistory
from ledger.documents.promise import open_promise, sign_promise
from ledger.documents.signed_document import (
    UnknownDocument,
    add_signature,
    open_document,
    sign_document,
    sign_rotation,
)
from ledger.encoding.text_forms import cid
from ledger.errors import FormatError, KeyFileError, SignatureError
from ledger.keys.ed25519 import ROLES, PublicKey, SigningKey
from ledger.keys.envelope import Envelope, sign
from ledger.keys.key_scope import EVERYTHING, KeyScope
from ledger.keys.trusted_keys import FILE_NAME, FixedThreshold, TrustedKeys
from services.runtime.trusted_directory import TrustedDirectory
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import BASE, KEYS, PROFILE, TRUSTED, at, engine_profile, promise_of, receipt, resume

ANNA, BERT, CARL = (seeded_key(bytes([number]) * 32, "operator") for number in (1, 2, 3))
STRANGER = seeded_key(b"\x04" * 32, "operator")


def trusting(threshold: FixedThreshold) -> TrustedKeys:
    return replace(TrustedKeys.of(ANNA, BERT, CARL, KEYS["receipts"]), threshold=threshold)


TWO = trusting(FixedThreshold(((0, 2),)))


def signed_by(*keys: SigningKey) -> Envelope:
    envelope = sign_document(resume(3), keys[0])
    for key in keys[1:]:
        envelope = add_signature(envelope, key)
    return envelope


def test_a_resume_needs_as_many_operators_as_the_threshold_says() -> None:
    with pytest.raises(SignatureError):
        open_document(signed_by(BERT), TWO)
    assert open_document(signed_by(BERT, ANNA), TWO) == open_document(signed_by(ANNA, BERT, CARL), TWO) == resume(3)


def test_one_operator_cannot_be_two() -> None:
    alone = signed_by(ANNA)
    assert add_signature(alone, ANNA) == alone
    twice = replace(alone, signatures=alone.signatures * 2)
    with pytest.raises(SignatureError):
        open_document(twice, TWO)
    listed_twice = TrustedKeys({"operator": (ANNA.public, ANNA.public, BERT.public)}, TWO.threshold)
    with pytest.raises(SignatureError):
        open_document(alone, listed_twice)


def test_one_operator_cannot_replace_the_others_by_keys_of_his_own() -> None:
    own = seeded_key(b"\x05" * 32, "operator")
    history = KeyHistory.of(TWO)
    for replaced in (BERT.key_id, STRANGER.key_id):
        entry = KeyEntry("operator", own.public, at(0), replaces=replaced)
        alone = sign_rotation(entry, own, ANNA)
        with pytest.raises(SignatureError):
            history.open(3, alone)
        assert history.open(3, add_signature(alone, CARL)) == entry
    by_its_holder = sign_rotation(KeyEntry("operator", own.public, at(0), replaces=BERT.key_id), own, BERT)
    assert history.open(3, by_its_holder)
    with pytest.raises(SignatureError):
        history.open(3, sign_rotation(KeyEntry("operator", ANNA.public, at(0), replaces=BERT.key_id), ANNA, CARL))


@pytest.mark.parametrize("role", [role for role in ROLES if role not in ("operator", "witness")])
def test_one_operator_replaces_no_key_if_two_are_required(role: str) -> None:
    new = seeded_key(b"\x06" * 32, role)
    old = KEYS[role]
    history = KeyHistory.of(replace(TWO, by_role={**TWO.by_role, role: (old.public,)}))
    entry = KeyEntry(role, new.public, at(0), replaces=old.key_id)
    for alone in (sign_rotation(entry, new, ANNA), sign_rotation(entry, new)):
        with pytest.raises(SignatureError):
            history.open(3, alone)
    assert history.open(3, sign_rotation(entry, new, ANNA, CARL)) == entry
    assert history.open(3, sign_rotation(entry, new, old)) == entry


def test_a_stranger_s_signature_is_none() -> None:
    with pytest.raises(SignatureError):
        open_document(signed_by(ANNA, STRANGER), TWO)


def test_signatures_over_different_documents_do_not_add_up() -> None:
    one, other = sign_document(resume(3), ANNA), sign_document(resume(4), BERT)
    mixed = replace(one, signatures=(*one.signatures, *other.signatures))
    with pytest.raises(SignatureError):
        open_document(mixed, TWO)


def test_a_key_of_another_role_adds_nothing() -> None:
    with pytest.raises(SignatureError):
        add_signature(signed_by(ANNA), KEYS["auditor"])
    with pytest.raises(FormatError):
        add_signature(replace(signed_by(ANNA), payload=b" " + signed_by(ANNA).payload), BERT)


def test_other_documents_need_one_signature() -> None:
    assert open_document(sign_document(receipt(), KEYS["receipts"]), TWO) == receipt()


def test_what_was_resumed_under_an_older_rule_stays_valid() -> None:
    history = KeyHistory.of(trusting(FixedThreshold(((0, 1), (100, 2)))))
    assert history.open(99, signed_by(ANNA)) == resume(3)
    for index in (100, 5000):
        with pytest.raises(SignatureError):
            history.open(index, signed_by(ANNA))


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("2\n", ((0, 2),)),
        ("# both\n\n 2  # of three\n", ((0, 2),)),
        ("1\n2 from 5120\n3 from 6000", ((0, 1), (5120, 2), (6000, 3))),
    ],
)
def test_the_file_says_how_many_and_from_where(text: str, steps: tuple[tuple[int, int], ...], tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    threshold = TrustedKeys.load(tmp_path).threshold
    assert threshold == FixedThreshold(steps)
    assert (threshold.at(0), threshold.at(None)) == (steps[0][1], steps[-1][1])


@pytest.mark.parametrize(
    "text", ["", "0", "17", "two", "2 from 5", "1\n2 from 7\n3 from 7", "1\n2 from 9\n3 from 8", "-1"]
)
def test_a_file_that_says_something_else_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(KeyFileError, match=FILE_NAME):
        TrustedKeys.load(tmp_path)


def test_without_a_file_one_signature_is_enough(tmp_path: Path) -> None:
    assert TrustedKeys.load(tmp_path).threshold.at(None) == 1


def test_a_threshold_that_changes_is_followed(tmp_path: Path) -> None:
    now = [0.0]
    for key in (ANNA, BERT):
        key.publish(tmp_path)
    trusted = TrustedDirectory(tmp_path, lambda: now[0]).trusted()
    assert open_document(signed_by(ANNA), trusted) == resume(3)
    (tmp_path / FILE_NAME).write_text("2")
    now[0] += 2.0
    with pytest.raises(SignatureError):
        open_document(signed_by(ANNA), trusted)
    assert open_document(signed_by(ANNA, BERT), trusted) == resume(3)


KEY = KEYS["receipts"]
OTHER = cid(b"another")
OURS = KeyScope.of(base_cid=[BASE], profile_cid=[PROFILE], tenant=["acme", "öl & co"])
MINE = replace(receipt(), tenant="acme", base_cid=BASE, profile_cid=PROFILE)


def trusting_mine(scope: KeyScope) -> TrustedKeys:
    return replace(TRUSTED, by_role={**TRUSTED.by_role, "receipts": (KEY.public.scoped(scope),)})


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
    trusted, outside = trusting_mine(OURS), replace(MINE, **changed)  # type: ignore[arg-type]
    assert open_document(sign_document(MINE, KEY), trusted) == MINE
    assert open_promise(sign_promise(promise_of(MINE), KEY).to_bytes(), trusted) == promise_of(MINE)
    with pytest.raises(SignatureError):
        open_document(sign_document(outside, KEY), trusted)
    with pytest.raises(SignatureError):
        open_promise(sign_promise(promise_of(outside), KEY).to_bytes(), trusted)


@pytest.mark.parametrize("outside", [{"base_cid": [OTHER]}, {"profile_cid": [OTHER]}])
def test_a_key_for_one_tenant_signs_the_profile_of_its_engine(outside: dict[str, list[str]]) -> None:
    profile = engine_profile()
    scope = KeyScope.of(base_cid=[BASE], profile_cid=[cid(profile.to_bytes())], tenant=["acme"])
    assert open_document(sign_document(profile, KEY), trusting_mine(scope)) == profile
    with pytest.raises(SignatureError):
        open_document(sign_document(profile, KEY), trusting_mine(KeyScope.of(**outside)))


@pytest.mark.parametrize("scope", [EVERYTHING, OURS])
def test_a_key_of_any_scope_signs_a_kind_of_a_later_version(scope: KeyScope) -> None:
    later = sign(b'{"type":"kolm.later.v1"}', "application/vnd.kolm.later.v1+json", KEY)
    assert open_document(later, trusting_mine(scope)) == UnknownDocument("kolm.later.v1")


def test_a_key_that_replaces_another_in_the_log_has_its_scope() -> None:
    new = seeded_key(b"\x21" * 32, "receipts")
    history = KeyHistory.of(trusting_mine(OURS))
    entry = sign_rotation(KeyEntry("receipts", new.public, at(0), replaces=KEY.key_id), new, KEY)
    history = history.after(3, history.open(3, entry))
    assert history.open(4, sign_document(MINE, new)) == MINE
    with pytest.raises(SignatureError):
        history.open(4, sign_document(replace(MINE, tenant="globex"), new))
