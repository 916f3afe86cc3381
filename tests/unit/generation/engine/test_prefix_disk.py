"""Blocks on the disk outlive the engine, and whatever becomes of their files, a sequence gets the tokens of its own."""

import itertools
import os
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.generation.engine import prefix_disk
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.prefix_disk import Owner, PrefixDisk, PrefixFolder, folder_of, next_digest
from services.generation.engine.request import EngineRequest
from services.generation.target.blocks import BLOCK
from tests.examples import examples
from tests.fakes.drafters import LetterDecoder, ReadingDrafter
from tests.fakes.engine_runs import CHEAP_ROWS, Collected
from tests.fakes.table_target import ContextTarget
from tests.unit.generation.engine.test_prefix_sharing import LAYERS, NEW, VOCAB, alone, asked, signature, text

CONTENT = 8 * BLOCK  # bytes of a block of the target without a model
ROOM = 1 << 20
PROMPT = text(5 * BLOCK + 9)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no slow disk."""
    monkeypatch.setattr(prefix_disk, "_PATIENCE", 60.0)


class Server:
    """An engine that ends with the test; the next one in the same folder is the server started again."""

    def __init__(self, path: Path, *, most: int = ROOM, identity: str = "base", **bounds: object) -> None:
        self.folder = PrefixFolder(path, most)
        self.target = ContextTarget(vocab=VOCAB, adapters=("red", "blue"))
        self.disk = PrefixDisk(self.folder, [identity], CONTENT, seconds=60.0)
        self.reading = ReadingDrafter(self.target, 0, LAYERS)
        known = EngineSettings(**bounds)  # type: ignore[arg-type]
        self.core = EngineCore(
            self.target, {"reading": self.reading}, LetterDecoder, CHEAP_ROWS, known, lambda: 0.0, disk=self.disk
        )

    def ask(self, *requests: EngineRequest) -> int:
        """Run them together, each must come out as alone; returns how many tokens of prompts were not computed."""
        collected = Collected()
        for request in requests:
            self.core.add(request, collected.sink)
        while not self.core.idle:
            self.core.step()
        for request in requests:
            assert signature(collected.outcomes[request.key]) == alone(request)
        assert not self.reading.faults
        return sum(outcome.metrics.cached_prompt_tokens for outcome in collected.outcomes.values())

    def stop(self) -> None:
        self.disk.close()
        self.folder.close()


def served(path: Path, *requests: EngineRequest, **options: object) -> int:
    """By a server that is started for them and stopped after them."""
    server = Server(path, **options)  # type: ignore[arg-type]
    reused = server.ask(*requests)
    server.stop()
    return reused


def files(path: Path) -> list[Path]:
    return sorted(each for each in path.glob("*/*") if each.is_file())


def test_a_prefix_is_there_again_after_a_restart_and_is_written_once(tmp_path: Path) -> None:
    assert served(tmp_path, asked("r", PROMPT)) == 0
    written = {file: file.stat().st_mtime_ns for file in files(tmp_path)}
    assert len(written) == 5
    assert served(tmp_path, asked("r", PROMPT)) == 5 * BLOCK
    assert served(tmp_path, asked("r", PROMPT[: 3 * BLOCK])) == 2 * BLOCK
    assert {file: file.stat().st_mtime_ns for file in files(tmp_path)} == written


def test_choices_and_requests_that_begin_alike_read_it_once(tmp_path: Path) -> None:
    served(tmp_path, asked("r", PROMPT))
    server = Server(tmp_path)
    alike = [asked("r", PROMPT, choice) for choice in range(4)] + [asked("s", (*PROMPT[: 3 * BLOCK], *text(70, 3)))]
    server.ask(*alike)
    server.stop()
    assert server.target.rows == 4 * 9 + 70 + len(alike) * (NEW - 1)
    assert server.folder.counts["read"] == 5


def test_a_drafter_s_features_are_kept_too_and_read_by_those_who_ask_for_them(tmp_path: Path) -> None:
    assert served(tmp_path, asked("r", PROMPT)) == 0
    assert served(tmp_path, asked("r", PROMPT, method="reading")) == 0
    assert len(files(tmp_path)) == 10
    assert served(tmp_path, asked("r", PROMPT, method="reading")) == 5 * BLOCK
    assert served(tmp_path, asked("r", PROMPT)) == 5 * BLOCK


@pytest.mark.parametrize("other", [{"tenant": "b"}, {"tenant": None}, {"adapter": "blue"}, {"adapter": None},
                                   {"reuse": False}])  # fmt: skip
def test_tenants_adapters_and_replays_get_nothing_of_each_other(other: dict[str, object], tmp_path: Path) -> None:
    request = asked("r", PROMPT, tenant="a", adapter="red")
    served(tmp_path, request)
    assert served(tmp_path, replace(request, **other)) == 0  # type: ignore[arg-type]
    assert served(tmp_path, request) == 5 * BLOCK


def test_another_model_or_profile_finds_nothing(tmp_path: Path) -> None:
    served(tmp_path, asked("r", PROMPT))
    assert served(tmp_path, asked("r", PROMPT), identity="other") == 0
    assert len(files(tmp_path)) == 10


def test_a_digest_names_every_token_up_to_the_end_of_its_block() -> None:
    """Pinned: what earlier servers wrote is found."""
    folder = PrefixFolder.__new__(PrefixFolder)
    disk = PrefixDisk(folder, ["base", "profile", "code"], CONTENT, 1.0)
    tokens = tuple(range(BLOCK))
    owners: list[Owner] = [("a", None), ("b", None), (None, "a"), ("a", "a")]
    first = [disk.first_digest(owner) for owner in owners]
    found = [next_digest(first[0], tokens), next_digest(first[0], (*tokens[:-1], 0)), next_digest(first[1], tokens)]
    found.append(next_digest(found[0], tokens))
    assert len({*first, *found}) == 8
    assert found[3].hex() == "2dd2a7a9b2cea5872dced67db641f30fb6f56e2c27b7da0aefcc0706c54d4489"


_WRONG = {
    "torn": lambda data: data[:-1],
    "empty": lambda data: b"",
    "too long": lambda data: data + b"\0",
    "a flipped bit": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    "a flipped bit of the checksum": lambda data: bytes([data[0] ^ 1]) + data[1:],
}


@pytest.mark.parametrize("wrong", _WRONG.values(), ids=_WRONG)
@pytest.mark.parametrize("method", ["off", "reading"])
def test_a_damaged_file_is_deleted_computed_and_written_again(wrong: object, method: str, tmp_path: Path) -> None:
    served(tmp_path, asked("r", PROMPT, method=method))
    third = files_in_order(tmp_path, PROMPT)[2]
    before = third.read_bytes()
    third.write_bytes(wrong(before))  # type: ignore[operator]
    server = Server(tmp_path, max_rows=BLOCK)
    assert server.ask(asked("r", PROMPT, method=method)) == 4 * BLOCK
    server.stop()
    assert server.folder.counts["damaged"] == 1
    assert third.read_bytes() == before


def files_in_order(path: Path, prompt: tuple[int, ...]) -> list[Path]:
    """The files of a prompt's blocks."""
    digest, found = PrefixDisk(PrefixFolder(path, ROOM), ["base"], 1, 1.0).first_digest((None, None)), []
    for first in range(0, len(prompt) - BLOCK, BLOCK):
        digest = next_digest(digest, prompt[first : first + BLOCK])
        found.append(path / folder_of(None) / digest.hex())
    return found


def test_a_file_in_another_s_place_is_not_believed(tmp_path: Path) -> None:
    served(tmp_path, asked("r", PROMPT))
    first, second = files_in_order(tmp_path, PROMPT)[:2]
    first.write_bytes(second.read_bytes())
    assert served(tmp_path, asked("r", PROMPT[: BLOCK + 1])) == 0


def test_files_that_vanish_or_cannot_be_written_cost_time_alone(tmp_path: Path) -> None:
    served(tmp_path, asked("r", PROMPT))
    server = Server(tmp_path)
    for file in files(tmp_path):
        file.unlink()
    folder = tmp_path / folder_of(None)
    folder.rmdir()
    folder.write_text("in the way")
    assert server.ask(asked("r", PROMPT)) == 0
    server.stop()
    assert server.folder.counts["failed"] > 1


def test_a_disk_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    served(tmp_path, asked("r", PROMPT))
    server = Server(tmp_path)
    now = itertools.count()
    server.disk.clock = lambda: 100.0 * next(now)
    held = threading.Event()
    server.disk._reader.submit(held.wait, 60.0)
    assert server.ask(asked("r", PROMPT)) == 0
    held.set()
    server.stop()


def test_a_disk_slower_than_the_model_is_asked_again_in_a_while(tmp_path: Path) -> None:
    requests = [asked(f"r{number}", text(BLOCK + 9, number)) for number in range(3)]
    served(tmp_path, *requests)
    server = Server(tmp_path)
    server.disk._pace = 40.0  # seconds a block, of which 30 would be worth it
    assert [server.ask(request) for request in requests] == [0, 0, BLOCK]
    server.stop()


def test_the_longest_unused_make_way(tmp_path: Path) -> None:
    size = CONTENT + 32
    hot, prompts = text(2 * BLOCK + 9, 99), [text(4 * BLOCK + 9, number) for number in range(6)]
    server = Server(tmp_path, most=12 * size)
    for number, prompt in enumerate(prompts):
        server.ask(asked("hot", hot))  # from memory, which counts as use
        server.ask(asked(f"r{number}", prompt))
        assert server.folder.bytes <= 12 * size
    server.stop()
    assert sum(file.stat().st_size for file in files(tmp_path)) == server.folder.bytes <= 12 * size
    again = Server(tmp_path, most=8 * size)
    assert again.folder.bytes <= 8 * size
    assert again.ask(asked("hot", hot)) == 2 * BLOCK
    assert again.ask(asked("new", text(4 * BLOCK + 9, 7))) == 0
    again.stop()
    assert served(tmp_path, asked("hot", hot)) == 2 * BLOCK  # to read it was use, too


def test_of_a_prefix_that_is_too_long_the_beginning_stays(tmp_path: Path) -> None:
    for _ in range(2):
        reused = served(tmp_path, asked("r", PROMPT), most=4 * (CONTENT + 32))
    assert reused >= 2 * BLOCK


def test_what_is_erased_is_gone_and_what_came_later_or_is_another_s_stays(tmp_path: Path) -> None:
    hour = 3600.0
    for tenant in ("a", "b", "c"):
        served(tmp_path, asked("r", PROMPT, tenant=tenant))
        for file in files(tmp_path):
            os.utime(file, (0, time.time() - 3 * hour))
    served(tmp_path, asked("s", text(BLOCK + 9, 4), tenant="a"))
    folder = PrefixFolder(tmp_path, ROOM)

    def left() -> list[int]:
        return [len(list((tmp_path / folder_of(tenant)).iterdir())) for tenant in ("a", "b", "c")]

    folder.erase(time.time() - 5 * hour)
    assert left() == [6, 5, 5]
    folder.erase(time.time() - 2.5 * hour, "a")
    assert left() == [1, 5, 5]
    folder.erase(time.time() - 2.5 * hour, None, ["a", "c"])
    assert left() == [1, 0, 5]
    folder.erase(time.time())
    assert left() == [0, 0, 0]
    assert folder.bytes == 0


@pytest.mark.parametrize("step", [-3600, 0, 3600])  # of the clock meanwhile, in seconds
def test_what_was_made_before_an_erasure_is_not_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    clock = [10**18]
    monkeypatch.setattr(time, "time_ns", lambda: clock[0])
    server = Server(tmp_path)
    held = threading.Event()
    server.disk._writer.submit(held.wait, 60.0)
    server.ask(asked("r", PROMPT))
    clock[0] += step * 10**9
    server.folder.erase(0.0, "a")
    held.set()
    server.disk._writer.submit(int).result()
    assert not files(tmp_path)
    clock[0] -= step * 10**9
    server.ask(asked("s", text(2 * BLOCK + 9, 4)))
    server.stop()
    assert len(files(tmp_path)) == 2


def test_only_the_owner_reads_and_nothing_else_in_the_folder_is_touched(tmp_path: Path) -> None:
    foreign = [tmp_path / "notes.txt", tmp_path / folder_of(None) / "notes.txt"]
    foreign[1].parent.mkdir(0o700)
    for file in (*foreign, draft := foreign[1].parent / f"{'0' * 64}.draft"):
        file.write_text("foreign")
    before = os.umask(0)
    try:
        served(tmp_path, asked("r", PROMPT), asked("s", PROMPT, tenant="a"), most=6 * (CONTENT + 32))
    finally:
        os.umask(before)
    PrefixFolder(tmp_path, ROOM).erase(time.time())
    assert [file.read_text() for file in foreign] == ["foreign"] * 2
    assert not draft.exists()
    served(tmp_path, asked("s", PROMPT, tenant="a"))
    assert {file.stat().st_mode & 0o777 for file in files(tmp_path) if file not in foreign} == {0o600}
    assert (tmp_path / folder_of("a")).stat().st_mode & 0o777 == 0o700


def test_more_than_the_disk_takes_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_disk, "_MOST_WAITING", 2 * CONTENT - 1)
    server = Server(tmp_path)
    held = threading.Event()
    server.disk._writer.submit(held.wait, 60.0)
    server.ask(asked("r", PROMPT))
    held.set()
    server.stop()
    assert server.folder.counts == {"written": 2, "dropped": 3}
    assert served(tmp_path, asked("r", PROMPT)) == 2 * BLOCK


@given(seed=st.integers(0, 2**32))
@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_no_history_of_a_folder_changes_a_token(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng, path = random.Random(seed), tmp_path_factory.mktemp("folder")
    trunk = text(4 * BLOCK, seed % 3)
    for _ in range(4):
        requests = [
            asked(
                f"r{number}", (*trunk[: rng.randrange(1, 4 * BLOCK)], *text(rng.randrange(90), number)),
                method=rng.choice(("off", "reading")), tenant=rng.choice("ab"), reuse=rng.random() < 0.9,
            )
            for number in range(rng.randrange(1, 7))
        ]  # fmt: skip
        served(path, *requests, most=rng.choice((3000, 9000, ROOM)), max_rows=rng.choice((40, 64, 256)))
        for file in files(path):
            if rng.random() < 0.2:
                data = file.read_bytes()
                file.write_bytes(rng.choice((data[:-1], rng.randbytes(len(data)))))
