"""Owners of a name: its first publisher, and the keys that replaced his."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledger.documents.draft_head_publication import DraftHeadPublication
from ledger.documents.signed_document import sign_document
from ledger.encoding.cid import cid
from ledger.keys.ed25519 import SigningKey
from services.registry.catalogue import PUBLICATION, Signed
from services.registry.errors import NameTaken
from services.registry.publishing import check_name
from tests.unit.ledger.builders import at

OLD, NEW, NEWEST, RIVAL = (SigningKey.from_seed(bytes([n]) * 32, "publisher") for n in (31, 32, 33, 34))


class Rotations:
    """A Log of which only the rotations matter."""

    def __init__(self, *rotations: tuple[SigningKey, SigningKey]) -> None:
        self._rotations = [(old.key_id, new.key_id) for old, new in rotations]

    def append(self, envelope: bytes) -> int:
        raise NotImplementedError

    def publisher_rotations(self) -> Sequence[tuple[str, str]]:
        return self._rotations


def publication(key: SigningKey) -> Signed:
    document = DraftHeadPublication(cid(b"head"), "support-head", cid(b"base"), "acme models", at(1))
    return Signed(PUBLICATION, document.manifest_cid, document.name, sign_document(document, key).to_bytes())


def test_a_name_that_nobody_has_is_free() -> None:
    check_name(None, publication(RIVAL), Rotations())


def test_the_keys_that_replaced_the_first_publisher_s_have_its_name() -> None:
    log = Rotations((OLD, NEW), (NEW, NEWEST))
    for key in (OLD, NEW, NEWEST):
        check_name(publication(OLD), publication(key), log)


@pytest.mark.parametrize("log", [Rotations(), Rotations((OLD, NEW)), Rotations((RIVAL, NEW))])
def test_any_other_key_is_refused_by_both_names(log: Rotations) -> None:
    with pytest.raises(NameTaken) as caught:
        check_name(publication(OLD), publication(RIVAL), log)
    assert OLD.key_id in caught.value.message
    assert RIVAL.key_id in caught.value.message
