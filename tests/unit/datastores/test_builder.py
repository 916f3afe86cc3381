"""Builds: whole or not at all, without what they do not need, and their progress is told."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from services.datastores.builder import BuildFailed, BuildParameters, BuildProgress
from services.datastores.documents import CorpusInvalid, Document
from tests.fakes.datastores import (
    BASE,
    builder,
    documents,
    store_of,
)

TEXTS = [f"Ship {number} left the harbour at {number % 24} with {number * 7} tons of grain." for number in range(200)]


@pytest.mark.slow
def test_a_build_needs_neither_torch_nor_transformers_nor_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    code = (
        "import sys; from pathlib import Path; from services.cli.jobs import datastore as c;"
        f"c.build([Path({str(tmp_path)!r})], [], Path({str(BASE)!r}), Path({str(tmp_path / 'out')!r}),"
        "c.BuildParameters());"
        "print(sorted({'torch', 'transformers', 'numba', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_progress_is_told_of_every_character_and_passage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.generation.drafting.retrieval.input_layer._PASSAGES", 64)
    read: list[int] = []
    embedded: list[tuple[int, int]] = []
    progress = BuildProgress(read.append, lambda done, count: embedded.append((done, count)))
    builder(BuildParameters(passage_tokens=16)).build(documents(TEXTS), tmp_path / "store", progress)
    count = len(np.load(tmp_path / "store" / "passages.npy"))
    assert sum(read) == sum(map(len, TEXTS))
    assert embedded == [(min(done, count), count) for done in range(64, count + 64, 64)]


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_a_corpus_without_text_is_refused_and_leaves_nothing(tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(CorpusInvalid, match="no text"):
        builder().build(documents(texts), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_what_stands_already_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(BuildFailed, match="stands already"):
        builder().build(documents(TEXTS), tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def _build_killed(folder: Path) -> None:
    def slow() -> object:
        yield Document("one", "words and more words " * 300_000)
        os.kill(os.getpid(), signal.SIGKILL)

    builder(BuildParameters(shard_tokens=1000)).build(slow(), folder)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_build_killed, args=(tmp_path / "store",))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "store").exists()
    store_of(TEXTS, tmp_path / "store")  # what was left is in nobody's way
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def _build_without_room(folder: Path, room: int, passage_tokens: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    made = builder(BuildParameters(passage_tokens=passage_tokens))
    try:
        made.build(documents(["words and more words " * 20_000]), folder)
    except BuildFailed as error:
        os._exit(0 if str(folder) in str(error) and "nothing was kept" in str(error) else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "passage_tokens"),
    [(0, 128), (20_000, 128), (200_000, 128), (800_000, 2)],
    ids=["sources", "tokens", "suffixes", "index"],
)
def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path, room: int, passage_tokens: int) -> None:
    arguments = (tmp_path / "store", room, passage_tokens)
    process = multiprocessing.get_context("spawn").Process(target=_build_without_room, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BuildFailed, match=r"file/store: cannot be written: Not a directory"):
        builder().build(documents(TEXTS), tmp_path / "file" / "store")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BuildFailed, match="stands already"):
        builder().build(documents(TEXTS), tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
