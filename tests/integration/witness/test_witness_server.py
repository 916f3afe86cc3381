"""The witness over HTTP, with its memory on disk; and the ledger service that collects from it."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvicorn

from ledger.bundle.folder import open_bundle
from ledger.bundle.report import Trust
from ledger.bundle.verification import verify_bundle
from ledger.errors import NotFound, StoreError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.note import COSIGNATURE, Note, NoteSignature, VerifierKey
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.reader import LedgerReader
from ledger.log.sequencer import Sequencer
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.merkle import tree_root
from ledger.tree.tile import TileHashes
from ledger.witness.cosignature import cosign, cosigners
from ledger.witness.cosignature_store import CosignatureStore
from ledger.witness.tlog_policy import Policy, PolicyGroup, PolicyLog, PolicyWitness
from ledger.witness.witness import Accusation, SeenTree, Witness
from services.client import errors as client_errors
from services.client.ledger.ledger import LedgerClient
from services.ledger.checkpoints import Checkpoints
from services.ledger.cosignature_collector import CosignatureCollector
from services.ledger.external_signers import ExternalSigners, post_to_witness, seen_by_witness
from services.ledger.settings import LedgerSettings
from services.witness.app import SqliteWitnessMemory, witness_app
from tests.access import trust_log
from tests.integration.ledger_service.serving_ledger import serving_ledger
from tests.mutations import replace
from tests.serving import fetched
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, signed_receipt
from tests.unit.ledger.log.memory_store import MemoryEntryStore, MemoryGuard
from tests.unit.ledger.witness.test_witness import LOG, Log


class RunningWitness:
    """A witness that serves on a port of its own, in a thread."""

    def __init__(self, name: str, folder: Path) -> None:
        self.key = SigningKey.load_or_create(folder / "witness.pem", "witness")
        self.vkey = VerifierKey(f"{name}.example/w", self.key.public, COSIGNATURE)
        self.memory = SqliteWitnessMemory(folder / "witness.sqlite3")
        self.watching = Witness(self.vkey.name, self.key, [LOG], self.memory, time.time)
        config = uvicorn.Config(witness_app(self, self.vkey), port=0, log_config=None, lifespan="off")  # type: ignore[arg-type]
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def add_checkpoint(self, body: bytes) -> bytes:
        return self.watching.add_checkpoint(body)

    def seen(self, origin: str) -> bytes:
        return self.watching.seen(origin)

    def start(self) -> None:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, body: bytes) -> tuple[int, str, bytes]:
        status, headers, answer = fetched(f"127.0.0.1:{self.port}", "/add-checkpoint", body)
        return status, headers["content-type"], answer


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningWitness]:
    witness = RunningWitness("a", tmp_path / "a")
    witness.start()
    yield witness
    witness.stop()


def test_the_protocol_over_http(running: RunningWitness) -> None:
    log, other = Log(), Log(salt=b"other")
    status, _, line = running.ask(log.request(0, 5))
    assert status == 200
    assert cosigners(Note.from_bytes(log.checkpoint(5) + line), [running.vkey])
    assert running.ask(log.request(0, 8))[0::2] == (409, b"5\n")
    assert running.ask(log.request(0, 8))[1] == "text/x.tlog.size"
    assert running.ask(other.request(5, 5))[0::2] == (409, b"5\n")
    assert running.ask(other.request(5, 8))[0] == 422
    assert running.ask(log.request(0, 5).replace(b"kolm.example", b"x.example", 1))[0] == 404
    assert running.ask(log.request(5, 8).replace(b"\n8\n", b"\n9\n"))[0] == 403
    assert running.ask(b"junk")[0] == 400
    assert running.ask(b"x" * 10**6)[0] == 413
    assert running.ask(log.request(5, 8))[0] == 200
    assert running.memory.latest(ORIGIN).size == 8
    assert running.memory.accusations() == [Accusation(other.checkpoint(5), log.checkpoint(5))]
    assert fetched(f"127.0.0.1:{running.port}", "/vkey")[2].decode().strip() == running.vkey.to_text()


def test_concurrent_requests_never_sign_two_histories(running: RunningWitness) -> None:
    log, other = Log(), Log(salt=b"other")
    bodies = [log.request(0, 20), other.request(0, 21)] * 6
    with ThreadPoolExecutor(len(bodies)) as pool:
        signed = [line for status, _, line in pool.map(running.ask, bodies) if status == 200]
    size = running.memory.latest(ORIGIN).size
    winner = log if size == 20 else other
    assert signed
    assert all(cosigners(Note.from_bytes(winner.checkpoint(size) + line), [running.vkey]) for line in signed)


def test_what_a_witness_has_signed_survives_it(tmp_path: Path) -> None:
    memory = SqliteWitnessMemory(tmp_path / "m.sqlite3")
    assert memory.advance("log", SeenTree(), SeenTree(3, b"r" * 32, b"note"))
    assert not memory.advance("log", SeenTree(), SeenTree(4, b"s" * 32, b"note"))
    again = SqliteWitnessMemory(tmp_path / "m.sqlite3")
    assert (again.latest("log"), again.latest("other")) == (SeenTree(3, b"r" * 32), SeenTree())
    assert again.latest("log").note == b"note"
    evil = Accusation(b"evil", b"note")
    for _ in range(2):
        again.accuse(Checkpoint("log", 3, b"e" * 32), evil)
        again.accuse(Checkpoint("log", 3, b"e" * 32), Accusation(b"evil, with another line below", b"note"))
    assert memory.accusations() == [evil]
    (tmp_path / "broken").write_bytes(b"this is no database, and it is long enough to be sure of that" * 20)
    with pytest.raises(StoreError):
        SqliteWitnessMemory(tmp_path / "broken")


def test_no_log_fills_the_memory_with_forks_or_takes_the_place_of_another(tmp_path: Path) -> None:
    memory = SqliteWitnessMemory(tmp_path / "m.sqlite3")
    for number in range(40):
        memory.accuse(Checkpoint("busy", 3, number.to_bytes(32)), Accusation(b"%d" % number, b"note"))
    memory.accuse(Checkpoint("other", 3, bytes(32)), Accusation(b"other", b"note"))
    assert [each.note for each in memory.accusations()] == [*(b"%d" % number for number in range(16)), b"other"]


class Deployment:
    """A ledger, and a policy of two of three witnesses: `a` serves, `b` may, `c` never does."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryEntryStore()
        self.sequencer = Sequencer(self.store, KEYS["log"], TRUSTED, ORIGIN, guard=MemoryGuard())
        self.reader = LedgerReader(self.store, self.sequencer.board)
        self.witnesses = {name: RunningWitness(name, folder / name) for name in ("a", "b")}
        absent = VerifierKey("c.example/w", SigningKey.generate("witness").public, COSIGNATURE)
        self.witnesses["a"].start()
        self.policy = Policy(
            (PolicyLog(LOG),),
            (
                PolicyWitness("a", self.witnesses["a"].vkey, self.witnesses["a"].url),
                PolicyWitness("b", self.witnesses["b"].vkey, "http://127.0.0.1:1/"),
                PolicyWitness("c", absent, "http://127.0.0.1:1/"),
            ),
            (PolicyGroup("two", 2, ("a", "b", "c")),),
            "two",
        )
        self.notes = CosignatureStore(folder / "witnessed", ORIGIN)
        self.collect(self.policy)

    def collect(self, policy: Policy) -> None:
        self.checkpoints = Checkpoints(self.reader, policy, self.notes)
        self.collector = CosignatureCollector(
            self.reader,
            policy,
            self.notes,
            lambda url, body: post_to_witness(url, body, 5.0),
            0.01,
            lambda url, origin: seen_by_witness(url, origin, 5.0),
        )

    def append(self, *numbers: int) -> None:
        for number in numbers:
            self.sequencer.append(signed_receipt(number)).result()

    def start_b(self) -> None:
        self.witnesses["b"].start()
        a, b, c = self.policy.witnesses
        b = replace(b, url=self.witnesses["b"].url)
        self.collect(replace(self.policy, witnesses=(a, b, c)))


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    made.sequencer.close()
    for witness in made.witnesses.values():
        if hasattr(witness, "port"):
            witness.stop()


def test_a_checkpoint_is_witnessed_once_enough_witnesses_have_cosigned_it(deployment: Deployment) -> None:
    deployment.append(0, 1, 2)
    asyncio.run(deployment.collector.round())
    newest = deployment.checkpoints.newest()
    assert (set(newest.cosigned), newest.witnessed) == ({"a.example/w"}, False)
    with pytest.raises(NotFound):
        deployment.checkpoints.witnessed()
    deployment.start_b()
    asyncio.run(deployment.collector.round())
    witnessed = deployment.checkpoints.witnessed()
    assert set(witnessed.cosigned) == {"a.example/w", "b.example/w"}
    assert set(deployment.policy.open(witnessed.note).cosigned) == {"a", "b"}
    deployment.append(3, 4)
    assert (deployment.checkpoints.newest().witnessed, deployment.checkpoints.witnessed().checkpoint.size) == (False, 3)
    asyncio.run(deployment.collector.round())
    assert deployment.checkpoints.witnessed().checkpoint.size == 5
    assert [Checkpoint.from_text(Note.from_bytes(note).text).size for note in deployment.checkpoints.earlier(5)] == [3]


def test_a_note_of_another_tree_is_not_shown_as_the_newest(deployment: Deployment) -> None:
    deployment.append(0)
    head = deployment.reader.head()
    other = sign_checkpoint(replace(head.checkpoint, root=bytes(32)), KEYS["log"])
    deployment.notes.record(1, Note.from_bytes(other))
    assert deployment.checkpoints.newest().note == head.note


def silenced(deployment: Deployment, seen: SeenTree) -> dict[str, bool]:
    """How the collector counts witness `a`, which has cosigned this tree."""
    deployment.witnesses["a"].memory.advance(ORIGIN, SeenTree(), seen)
    asyncio.run(deployment.collector.round())
    assert deployment.checkpoints.newest().cosigned == {}
    return {"a": deployment.collector.silent()["a"]}


@pytest.mark.parametrize("size", [1, 2, 9], ids=["another history", "this size", "more than the log"])
def test_a_witness_that_shows_what_the_log_has_signed_accuses_it(
    size: int, deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    deployment.append(0, 1)
    other = Log(salt=b"other")
    seen = Checkpoint.from_text(Note.from_bytes(other.checkpoint(size)).text)
    assert silenced(deployment, SeenTree(size, seen.root, other.checkpoint(size))) == {"a": True}
    assert [line.levelname for line in caplog.records if "witness a:" in line.message] == ["ERROR"]


@pytest.mark.parametrize("size", [1, 2, 9])
@pytest.mark.parametrize("note", ["nothing", "junk", "by a stranger", "of another log"])
def test_a_witness_that_only_says_so_is_silent_and_no_alarm(size: int, note: str, deployment: Deployment) -> None:
    deployment.append(0, 1)
    head = Checkpoint(ORIGIN, size, b"x" * 32)
    shown = {
        "nothing": b"",
        "junk": b"note",
        "by a stranger": sign_checkpoint(head, SigningKey.generate("log")),
        "of another log": sign_checkpoint(replace(head, origin="other.example/log"), KEYS["log"]),
    }
    assert silenced(deployment, SeenTree(size, head.root, shown[note])) == {"a": False}


def test_a_witness_that_shows_this_logs_own_checkpoint_is_no_accusation(deployment: Deployment) -> None:
    deployment.append(0, 1)
    own = deployment.reader.head().note
    for answer in ((409, b"999999\n"), (422, b"not a tree of mine")):
        collector = CosignatureCollector(
            deployment.reader, deployment.policy, deployment.notes, lambda *_, a=answer: a, 0.01, lambda *_: own
        )
        asyncio.run(collector.round())
        assert collector.silent()["a"] is False
        assert collector.lags()["a"] == 2  # no other server claims that it has more


def test_a_witness_shows_what_it_has_cosigned_and_nothing_of_other_logs(running: RunningWitness) -> None:
    log = Log()
    with pytest.raises(OSError, match="404"):
        seen_by_witness(running.url, ORIGIN, 5.0)
    running.ask(log.request(0, 5))
    assert seen_by_witness(running.url, ORIGIN, 5.0) == log.checkpoint(5)
    with pytest.raises(OSError, match="404"):
        seen_by_witness(running.url, "other.example/log", 5.0)


def test_a_witness_that_lies_is_not_believed(deployment: Deployment) -> None:
    deployment.append(0)
    head = deployment.reader.head()
    stranger = SigningKey.generate("witness")

    def lying(_: str, __: bytes) -> tuple[int, bytes]:
        return 200, cosign(head.checkpoint.to_text(), "a.example/w", stranger, 5).to_line().encode()

    for answer in (lying, lambda *_: (200, b"junk"), lambda *_: (409, b"many\n"), lambda *_: (500, b"")):
        collector = CosignatureCollector(deployment.reader, deployment.policy, deployment.notes, answer, 0.01)
        asyncio.run(collector.round())
        assert deployment.notes.sizes() == []


def test_an_answer_adds_one_line_of_its_witness_to_the_note(deployment: Deployment) -> None:
    deployment.append(0)
    text, witness = deployment.reader.head().checkpoint.to_text(), deployment.witnesses["a"]
    own = [cosign(text, witness.vkey.name, witness.key, seconds) for seconds in (5, 7, 6)]
    names = ("other", ORIGIN)
    more = [NoteSignature(name, witness.vkey.key_id, bytes(size)) for name in names for size in (60, 30_000)]
    answer = "".join(line.to_line() for line in (*own, *more)).encode()
    collector = CosignatureCollector(
        deployment.reader, deployment.policy, deployment.notes, lambda *_: (200, answer), 0.01
    )
    asyncio.run(collector.round())
    assert "a" not in collector.silent()
    log, *cosigned = Note.from_bytes(deployment.notes.note(1) or b"").signatures
    assert (log.name, cosigned) == (ORIGIN, own[1:2])


async def test_collecting_goes_on_by_itself_and_appends_never_wait(deployment: Deployment) -> None:
    task = asyncio.ensure_future(deployment.collector.run())
    for number in range(3):
        await asyncio.to_thread(deployment.append, number)
    async with asyncio.timeout(60):
        while not (newest := deployment.checkpoints.newest()).cosigned or newest.checkpoint.size < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    assert deployment.checkpoints.newest().checkpoint.root == tree_root(3, TileHashes(deployment.store))


def test_the_ledger_service_hands_out_what_was_collected(deployment: Deployment, tmp_path: Path) -> None:
    deployment.start_b()
    log = SigningKey.load_or_create(tmp_path / "log/keys/log.pem", "log")
    watched = VerifierKey("kolm.local/ledger", log.public)
    for witness in deployment.witnesses.values():
        witness.watching = Witness(witness.vkey.name, witness.key, [watched], witness.memory, time.time)
    policy = Policy(
        (PolicyLog(watched),),
        tuple(PolicyWitness(name, witness.vkey, witness.url) for name, witness in deployment.witnesses.items()),
        (PolicyGroup("both", 2, ("a", "b")),),
        "both",
    )
    (tmp_path / "policy").write_bytes(policy.to_bytes())
    settings = trust_log(LedgerSettings(data_dir=tmp_path / "log", witness_policy=tmp_path / "policy"))
    outside = ExternalSigners.of(settings)
    with (
        serving_ledger(settings, outside=outside) as (served, servicer),
        LedgerClient.connect(served.address, wait=60) as client,
    ):
        KEYS["receipts"].publish(settings.trusted_directory)
        client.append(signed_receipt(0))
        with pytest.raises(client_errors.NotFound):
            client.checkpoint(witnessed=True)
        collector = outside.collector(servicer.reader)
        asyncio.run(collector.round())
        found = client.checkpoint(witnessed=True)
        assert (found.tree_size, found.witnessed) == (1, True)
        assert {each.witness for each in found.cosignatures} == {"a.example/w", "b.example/w"}
        assert set(policy.open(found.note).cosigned) == {"a", "b"}
        assert settings.vkey_file.read_text().strip() == watched.to_text()
        bundle = tmp_path / "bundle.tar.gz"
        with client.export() as pieces:
            bundle.write_bytes(b"".join(pieces))
    trust = Trust(TrustedKeys.load(settings.trusted_directory), policy)
    with open_bundle(bundle) as opened:
        report = verify_bundle(opened, trust)
    assert (report.ok, set(report.cosigned)) == (True, {"a", "b"}), report.problem
