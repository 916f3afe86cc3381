import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import FormatError, LedgerError, SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.note import MAX_NOTE_BYTES, Note, VerifierKey, note_key_id, sign_note, verify_note
from ledger.tree.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from ledger.tree.merkle import leaf_hash
from tests.examples import VECTORS
from tests.keys import seeded_key
from tests.unit.ledger.builders import KEYS, ORIGIN, STRANGER

NOTES = {path.stem: path.read_bytes() for path in (VECTORS / "signed_note").glob("*.note")}
PETER = json.loads((VECTORS / "signed_note/peter_neumann.json").read_bytes())
PETER_KEY = seeded_key(base64.b64decode(PETER["signer_key"].split("+", 4)[4])[1:], "log")
LOG = KEYS["log"]
CHECKPOINT = Checkpoint(ORIGIN, 5, leaf_hash(b"root"))
SIGNED = sign_checkpoint(CHECKPOINT, LOG)


@pytest.mark.parametrize("name", NOTES)
def test_published_notes_read_back_to_the_byte(name: str) -> None:
    assert Note.from_bytes(NOTES[name]).to_bytes() == NOTES[name]


def test_the_reference_note_is_signed_to_the_same_bytes_and_verifies() -> None:
    note = Note.from_bytes(NOTES["peter_neumann"])
    assert sign_note(note.text, PETER["name"], PETER_KEY).to_bytes() == NOTES["peter_neumann"]
    verifier = VerifierKey(PETER["name"], PETER_KEY.public)
    assert verifier.to_text() == PETER["verifier_key"]
    assert VerifierKey.from_text(PETER["verifier_key"]) == verifier
    assert note_key_id(PETER["name"], PETER_KEY.public).hex() == "c74f20a3"
    assert verify_note(note, PETER["name"], [PETER_KEY.public]) == PETER_KEY.public


def test_a_text_may_hold_empty_lines() -> None:
    note = Note.from_bytes(NOTES["c2sp_signed_note_example"])
    assert note.text.endswith("trafitto da un raggio di sole:\n\ned è subito sera.\n")


def test_the_published_checkpoints_parse() -> None:
    for name, signatures in (("c2sp_tlog_checkpoint_example", 1), ("c2sp_tlog_cosignature_example", 2)):
        note = Note.from_bytes(NOTES[name])
        checkpoint = Checkpoint.from_text(note.text)
        assert (checkpoint.origin, checkpoint.size) == ("example.com/behind-the-sofa", 20852163)
        assert checkpoint.to_text() == note.text
        assert len(note.signatures) == signatures


def test_a_checkpoint_opens_with_the_key_and_origin_of_its_log() -> None:
    assert open_checkpoint(SIGNED, [STRANGER.public, LOG.public], ORIGIN) == CHECKPOINT
    assert open_checkpoint(SIGNED, [LOG.public]) == CHECKPOINT
    with pytest.raises(SignatureError):
        open_checkpoint(SIGNED, [STRANGER.public], ORIGIN)
    with pytest.raises(SignatureError):
        open_checkpoint(SIGNED, [], ORIGIN)
    with pytest.raises(FormatError, match="other"):
        open_checkpoint(SIGNED, [LOG.public], "other.example/log")


def test_signatures_by_unknown_keys_are_ignored() -> None:
    witness = sign_note("x\n", "witness.example", STRANGER).signatures
    cosigned = Note(CHECKPOINT.to_text(), (*witness, *Note.from_bytes(SIGNED).signatures))
    assert open_checkpoint(cosigned.to_bytes(), [LOG.public], ORIGIN) == CHECKPOINT


def test_a_bad_signature_by_a_known_key_condemns_the_whole_note() -> None:
    good = Note.from_bytes(SIGNED).signatures
    bad = sign_note("other text\n", ORIGIN, LOG).signatures
    with pytest.raises(SignatureError):
        open_checkpoint(Note(CHECKPOINT.to_text(), (*good, *bad)).to_bytes(), [LOG.public], ORIGIN)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text\n",
        b"text\n\n",
        b"text\n\n\n",
        b"text\n\nno dash\n",
        "text\n\n— name AAAAAAA=".encode(),
        "text\n\n— name AAAA\n".encode(),
        "text\n\n— name  AAAAAAA=\n".encode(),
        "text\n\n— na+me AAAAAAA=\n".encode(),
        "text\n\n— na\u00a0me AAAAAAA=\n".encode(),
        "text\n\n— name AAAAAAB=\n".encode(),
        "text\n\n— name ?\n".encode(),
        "te\txt\n\n— name AAAAAAA=\n".encode(),
        "te\rxt\n\n— name AAAAAAA=\n".encode(),
        b"te\xffxt\n\n" + "— name AAAAAAA=\n".encode(),
        b"x" * MAX_NOTE_BYTES + "\n\n— name AAAAAAA=\n".encode(),
    ],
)
def test_malformed_notes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="note"):
        Note.from_bytes(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "origin\n5\n",
        "\n5\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "origin\n05\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "origin\n9223372036854775808\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "origin\n-5\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "origin\n٥\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
        "origin\n5\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I\n",
        "origin\n5\nAAAA\n",
        "origin\n5\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\nextension\n",
        "two words\n5\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n",
    ],
)
def test_malformed_checkpoints_are_refused(text: str) -> None:
    with pytest.raises(FormatError, match="checkpoint"):
        Checkpoint.from_text(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [("no newline", "n"), ("tab\t\n", "n"), ("x\n", ""), ("x\n", "a b"), ("x\n", "a+b"), ("x\n", "a\nb")],
)
def test_what_no_verifier_would_read_is_not_signed(text: str, name: str) -> None:
    with pytest.raises(FormatError):
        sign_note(text, name, LOG)


def test_the_same_head_is_signed_to_the_same_bytes() -> None:
    assert sign_checkpoint(CHECKPOINT, LOG) == SIGNED


@given(st.binary(max_size=60), st.integers(0, len(SIGNED)), st.integers(0, 40))
def test_whatever_the_bytes_only_ledger_errors_come_out(junk: bytes, at: int, cut: int) -> None:
    for data in (junk, SIGNED[:at] + junk + SIGNED[at + cut :]):
        try:
            note = Note.from_bytes(data)
        except FormatError:
            continue
        assert note.to_bytes() == data
        try:
            opened = open_checkpoint(data, [LOG.public], ORIGIN)
        except LedgerError:
            continue
        assert opened == CHECKPOINT


@given(st.text(max_size=40))
def test_whatever_the_text_a_checkpoint_reads_back_or_raises_one_error(text: str) -> None:
    with contextlib.suppress(FormatError):
        assert Checkpoint.from_text(text).to_text() == text


def test_a_public_key_of_another_length_is_no_key() -> None:
    with pytest.raises(FormatError):
        PublicKey(b"short")
