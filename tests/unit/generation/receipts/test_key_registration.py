"""The key entry that a generation service puts on record."""

from pathlib import Path

from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import read_document
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from services.generation.receipts.key_registration import key_envelope


def test_a_key_is_put_on_record_once_and_its_successor_anew(tmp_path: Path) -> None:
    old, new = (SigningKey.from_seed(bytes([number]) * 32, "receipts") for number in (1, 2))
    first = key_envelope(tmp_path / "key", old)
    assert key_envelope(tmp_path / "key", old) == first
    second = key_envelope(tmp_path / "key", new)
    recorded = read_document(Envelope.from_bytes(second))
    assert isinstance(recorded, KeyEntry)
    assert (recorded.public_key, key_envelope(tmp_path / "key", new)) == (new.public, second)
