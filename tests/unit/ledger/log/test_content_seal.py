"""Sealed contents open with their key and receipt id alone."""

import pytest

from ledger.documents.content import Content
from ledger.errors import FormatError
from ledger.log.content_seal import ContentKey, packed, seal, unseal
from tests.unit.ledger.builders import content, receipt_id

KEY = ContentKey.generate(1)[0]


def test_a_content_comes_back_as_it_was() -> None:
    for kept in (
        content(0),
        Content(bytes(32), (), bytes(32), ()),
        Content(bytes(32), (2**32 - 1,), bytes(32), (0, 1)),
        Content(bytes(32), (2**32 - 1,), bytes(32), (0, 1), '{"type": "söner"}'),
        Content(bytes(32), (), bytes(32), (), ""),
    ):
        assert unseal(seal(packed(kept), receipt_id(0), KEY), receipt_id(0), KEY) == kept


def test_nothing_of_it_shows() -> None:
    kept = content(1)
    sealed = seal(packed(kept), receipt_id(1), KEY)
    assert kept.prompt_salt not in sealed
    assert kept.output_salt not in sealed
    assert sealed != seal(packed(kept), receipt_id(1), KEY)


def test_only_its_own_key_opens_it_and_only_for_its_own_receipt() -> None:
    sealed = seal(packed(content(0)), receipt_id(0), KEY)
    for data, name, key in (
        (sealed, receipt_id(1), KEY),
        (sealed, receipt_id(0), ContentKey.generate(1)[0]),
        *((sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], receipt_id(0), KEY) for at in range(len(sealed))),
        *((sealed[:at], receipt_id(0), KEY) for at in range(len(sealed))),
    ):
        with pytest.raises(FormatError) as caught:
            unseal(data, name, key)
        assert caught.value.field == "sealed"


def test_names_of_later_keys_sort_behind_those_of_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for seconds in (255, 256, 65_536, 1_800_000_000):
        monkeypatch.setattr("time.time_ns", lambda now=seconds: now * 10**9)
        names += sorted(key.key_id for key in ContentKey.generate(20))
    assert names == sorted(names)
    assert len({*names}) == 80


def test_a_key_is_not_shown() -> None:
    assert KEY.key.hex() not in repr(KEY)
    assert repr(KEY.key) not in repr(KEY)
