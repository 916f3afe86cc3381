"""C2SP tlog-witness: a witness's cosignatures and refusals."""

import contextlib
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import (
    Forked,
    FormatError,
    Inconsistent,
    LedgerError,
    StaleRequest,
    StoreError,
    UnknownLog,
    UnsignedCheckpoint,
)
from ledger.keys.ed25519 import SigningKey
from ledger.keys.note import COSIGNATURE, MAX_NOTE_BYTES, Note, NoteSignature, VerifierKey
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.merkle import EMPTY_ROOT, consistency_proof, leaf_hash, tree_root
from ledger.witness import cosignature_store
from ledger.witness.cosignature import MAX_REQUEST_BYTES, AddCheckpoint, cosigners, read_size
from ledger.witness.cosignature_store import CosignatureStore, merge
from ledger.witness.witness import Accusation, SeenTree, Witness
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, ORIGIN, STRANGER
from tests.unit.ledger.tree.naive_tree import NaiveHashes, NaiveTree

KEY = seeded_key(b"w" * 32, "witness")
NAME = "w.example/1"
VKEY = VerifierKey(NAME, KEY.public, COSIGNATURE)
LOG = VerifierKey(ORIGIN, KEYS["log"].public)


@dataclass
class Memory:
    """Keeps the contract of WitnessMemory, durability excepted. `on_advance` runs just before the step."""

    trees: dict[str, SeenTree] = field(default_factory=dict)
    accused: list[Accusation] = field(default_factory=list)
    on_advance: object = None

    def latest(self, origin: str) -> SeenTree:
        return self.trees.get(origin, SeenTree())

    def advance(self, origin: str, old: SeenTree, new: SeenTree) -> bool:
        if callable(self.on_advance):
            self.on_advance()
        if self.latest(origin) != old:
            return False
        self.trees[origin] = new
        return True

    def accuse(self, tree: Checkpoint, accusation: Accusation) -> None:
        self.accused.append(accusation)


class Log:
    """A log of numbered leaves, honest by default."""

    def __init__(self, size: int = 40, salt: bytes = b"") -> None:
        self.hashes = NaiveHashes(NaiveTree([leaf_hash(salt + b"%d" % number) for number in range(size)]))

    def checkpoint(self, size: int, key: SigningKey = KEYS["log"], origin: str = ORIGIN) -> bytes:
        return sign_checkpoint(Checkpoint(origin, size, tree_root(size, self.hashes)), key)

    def request(self, old: int, size: int) -> bytes:
        return AddCheckpoint(old, consistency_proof(old, size, self.hashes), self.checkpoint(size)).to_bytes()


def witness(memory: Memory) -> Witness:
    return Witness(NAME, KEY, [LOG], memory, lambda: 1_700_000_000.9)


def cosigned(log: Log, size: int, answer: bytes) -> int:
    """The time of the witness's cosignature of this checkpoint."""
    return cosigners(Note.from_bytes(log.checkpoint(size) + answer), [VKEY])[VKEY]


def test_of_no_entries_there_is_one_tree() -> None:
    memory = Memory()
    witness = Witness(NAME, KEY, [LOG], memory, lambda: 0)
    wrong = sign_checkpoint(Checkpoint(ORIGIN, 0, bytes(32)), KEYS["log"])
    right = sign_checkpoint(Checkpoint(ORIGIN, 0, EMPTY_ROOT), KEYS["log"])
    for _ in range(2):  # before and after the log was first seen
        with pytest.raises(Forked):
            witness.add_checkpoint(AddCheckpoint(0, (), wrong).to_bytes())
        assert witness.add_checkpoint(AddCheckpoint(0, (), right).to_bytes())
    assert memory.accused == [Accusation(wrong, b"")] * 2
    assert memory.latest(ORIGIN).root == EMPTY_ROOT


def test_a_log_that_grows_is_cosigned_again_and_again() -> None:
    log, memory = Log(), Memory()
    known = 0
    for size in (0, 1, 1, 5, 8, 8, 39):
        assert cosigned(log, size, witness(memory).add_checkpoint(log.request(known, size))) == 1_700_000_000
        assert memory.latest(ORIGIN) == SeenTree(size, tree_root(size, log.hashes))
        known = size
    assert not memory.accused


def test_a_request_from_another_size_is_told_the_right_one() -> None:
    log, memory = Log(), Memory()
    witness(memory).add_checkpoint(log.request(0, 8))
    for old, size in ((0, 8), (0, 9), (5, 20), (9, 20)):
        with pytest.raises(StaleRequest) as refused:
            witness(memory).add_checkpoint(log.request(old, size))
        assert refused.value.size == 8


def test_a_fork_is_refused_and_both_checkpoints_are_kept_as_proof() -> None:
    log, other, memory = Log(), Log(salt=b"other"), Memory()
    witness(memory).add_checkpoint(log.request(0, 8))
    for old in (8, 3, 0):  # two signatures are proof, whatever old size the request has
        with pytest.raises(Forked):
            witness(memory).add_checkpoint(other.request(old, 8))
    assert memory.accused == [Accusation(other.checkpoint(8), log.checkpoint(8))] * 3
    assert memory.latest(ORIGIN) == SeenTree(8, tree_root(8, log.hashes))


def test_an_invalid_proof_accuses_no_honest_log() -> None:
    log, other, memory = Log(), Log(salt=b"other"), Memory()
    witness(memory).add_checkpoint(log.request(0, 8))
    garbage = consistency_proof(8, 20, other.hashes)
    for proof, checkpoint in (
        ((), log.checkpoint(9)),
        (garbage, log.checkpoint(20)),
        (garbage, other.checkpoint(20)),  # a fork, perhaps; nothing here shows that the log has two trees of one size
    ):
        with pytest.raises(Inconsistent):
            witness(memory).add_checkpoint(AddCheckpoint(8, proof, checkpoint).to_bytes())
    assert not memory.accused
    witness(memory).add_checkpoint(log.request(8, 9))


def test_only_checkpoints_of_its_logs_are_looked_at() -> None:
    log, memory = Log(), Memory()
    for note, expected in (
        (log.checkpoint(3, origin="other.example/log"), UnknownLog),
        (log.checkpoint(3, key=STRANGER), UnsignedCheckpoint),
        (log.checkpoint(3).replace(b"\n3\n", b"\n4\n"), UnsignedCheckpoint),
    ):
        with pytest.raises(expected):
            witness(memory).add_checkpoint(AddCheckpoint(0, (), note).to_bytes())
    with pytest.raises(FormatError):
        witness(memory).add_checkpoint(AddCheckpoint(9, (), log.checkpoint(3)).to_bytes())
    with pytest.raises(Inconsistent):
        witness(memory).add_checkpoint(AddCheckpoint(0, (leaf_hash(b"x"),), log.checkpoint(3)).to_bytes())
    assert memory.trees == {}


def test_a_replaced_key_signs_nothing_more_once_its_successor_has() -> None:
    log, other, memory = Log(), Log(salt=b"thief"), Memory()
    new = seeded_key(b"n" * 32, "log")
    witness = Witness(NAME, KEY, [LOG, VerifierKey(ORIGIN, new.public)], memory, lambda: 0)
    for old, size, key in ((0, 2, KEYS["log"]), (2, 4, KEYS["log"]), (4, 6, new)):
        proof = consistency_proof(old, size, log.hashes)
        witness.add_checkpoint(AddCheckpoint(old, proof, log.checkpoint(size, key)).to_bytes())
    for fork, size in ((log, 9), (other, 6)):
        with pytest.raises(UnsignedCheckpoint):
            witness.add_checkpoint(fork.request(6, size))
    assert (memory.latest(ORIGIN).size, memory.accused) == (6, [])


def test_of_two_concurrent_requests_the_second_has_to_start_again() -> None:
    log, memory = Log(), Memory()
    witness(memory).add_checkpoint(log.request(0, 4))

    def meanwhile() -> None:
        memory.on_advance = None
        memory.trees[ORIGIN] = SeenTree(9, tree_root(9, log.hashes))

    memory.on_advance = meanwhile
    with pytest.raises(StaleRequest) as refused:
        witness(memory).add_checkpoint(log.request(4, 6))
    assert (refused.value.size, memory.latest(ORIGIN).size) == (9, 9)


def test_a_request_reads_as_the_specification_writes_it() -> None:
    log = Log()
    request = AddCheckpoint(3, (leaf_hash(b"a"), leaf_hash(b"b")), log.checkpoint(8))
    lines = request.to_bytes().decode().split("\n")
    assert (lines[0], len(lines[1]), lines[3], lines[4]) == ("old 3", 44, "", ORIGIN)
    assert AddCheckpoint.from_bytes(request.to_bytes()) == request
    body = request.to_bytes()
    for bad in (
        body.replace(b"old 3", b"old 03"),
        body.replace(b"old 3", b"new 3"),
        body.replace(b"old 3\n", b"old 3\nAAAA\n"),
        body.replace(b"\n\n", b"\n", 1),
        replace(request, proof=(leaf_hash(b"a"),) * 64).to_bytes(),
        b"old 3\n" + b"\xff\n\n",
        b"x" * (MAX_REQUEST_BYTES + 1),
    ):
        with pytest.raises(FormatError):
            AddCheckpoint.from_bytes(bad)
    assert read_size(b"20852163\n") == 20852163
    for junk in (b"", b"7", b"07\n", b"7\n\n", b"-7\n"):
        with pytest.raises(FormatError):
            read_size(junk)


@given(st.binary(max_size=300), st.integers(0, 600), st.integers(0, 5))
def test_junk_raises_the_one_family_and_changes_nothing(junk: bytes, at: int, cut: int) -> None:
    memory, whole = Memory(), Log().request(0, 8)
    for body in (junk, whole[: at % len(whole)] + junk[:4] + whole[at % len(whole) + cut :]):
        with contextlib.suppress(LedgerError):
            witness(memory).add_checkpoint(body)
            assert memory.latest(ORIGIN).size == 8


def test_cosigned_notes_are_merged_and_kept(tmp_path: Path) -> None:
    log, memory = Log(), Memory()
    notes = CosignatureStore(tmp_path / "witnessed", ORIGIN)
    signed = Note.from_bytes(log.checkpoint(5))
    answer = witness(memory).add_checkpoint(log.request(0, 5))
    notes.record(5, signed)
    notes.record(5, Note.from_bytes(log.checkpoint(5) + answer))
    notes.record(5, signed)
    kept = Note.from_bytes(notes.note(5) or b"")
    assert (len(kept.signatures), notes.sizes(), notes.note(6)) == (2, [5], None)
    assert cosigners(kept, [VKEY])
    assert CosignatureStore(tmp_path / "witnessed", ORIGIN).note(5) == kept.to_bytes()
    with pytest.raises(FormatError):
        notes.record(5, Note.from_bytes(Log(salt=b"other").checkpoint(5)))
    long = NoteSignature("long", bytes(4), bytes(MAX_NOTE_BYTES))
    with pytest.raises(FormatError):
        notes.record(5, replace(kept, signatures=(*kept.signatures, long)))
    assert notes.note(5) == kept.to_bytes()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError):
        CosignatureStore(tmp_path / "file", ORIGIN)
    shutil.rmtree(tmp_path / "witnessed")
    with pytest.raises(StoreError):
        notes.sizes()


def test_notes_of_an_earlier_log_are_none_of_this_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cosignature_store, "_MOST_KEPT", 2)
    log, earlier = Log(), "kolm.example/earlier"
    for origin, sizes in {earlier: (8, 9), ORIGIN: (2, 8)}.items():
        notes = CosignatureStore(tmp_path, origin)
        assert (notes.sizes(), notes.note(8)) == ([], None)
        for size in sizes:
            notes.record(size, Note.from_bytes(log.checkpoint(size, origin=origin)))
        assert (notes.sizes(), notes.note(8)) == ([*sizes], log.checkpoint(8, origin=origin))
    assert CosignatureStore(tmp_path, earlier).sizes() == [9]


def test_notes_can_be_recorded_from_many_threads(tmp_path: Path) -> None:
    log = Log()
    notes = CosignatureStore(tmp_path, ORIGIN)
    answers = []
    for number in range(8):
        key = seeded_key(b"%d" % number * 32, "witness")
        each = Witness(f"w{number}.example", key, [LOG], Memory(), lambda: 5.0)
        answers.append(Note.from_bytes(log.checkpoint(5) + each.add_checkpoint(log.request(0, 5))))
    threads = [threading.Thread(target=notes.record, args=(5, answer)) for answer in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Note.from_bytes(notes.note(5) or b"").signatures) == 9
    assert merge(answers[0], answers[1]).text == answers[0].text
