"""The registry as a process: kill -9 in the middle of an upload, restart, go on; stop cleanly; say what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kolm.registry.v1 import registry_pb2
from ledger.documents.manifests import NamedFile
from ledger.encoding.text_forms import digest
from services.client.errors import KolmError, NotFound
from services.client.registry import RegistryClient, upload
from tests.access import everybodys_file
from tests.fuzzing import flood
from tests.integration.registry.conftest import Serve
from tests.processes import started

DATA = os.urandom(1024 * 1024) * 24
NAME = digest(DATA)


@contextmanager
def running(directory: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    flags = ("--data-dir", str(directory), "--listen", "127.0.0.1:0", "--ledger", "127.0.0.1:1")
    flags += ("--principals", str(everybodys_file()), *more)
    with started([sys.executable, "-m", "services.registry", *flags], directory / "address") as running:
        yield running


def blobs(directory: Path) -> list[Path]:
    return [path for path in (directory / "blobs").rglob("*") if path.is_file()]


@pytest.mark.parametrize("after", [3, 17])
def test_kill_9_in_the_middle_leaves_no_half_blob_and_the_upload_goes_on(tmp_path: Path, after: int) -> None:
    with running(tmp_path) as (process, address), RegistryClient.connect(address, wait=60) as registry:
        sent = threading.Event()

        def chunks() -> Iterator[bytes]:
            for start in range(0, len(DATA), 1024 * 1024):
                if start == after * 1024 * 1024:
                    sent.set()
                    process.wait()
                yield DATA[start : start + 1024 * 1024]

        def attempt() -> None:
            with pytest.raises(KolmError):
                registry.upload(NAME, len(DATA), 0, chunks())

        thread = threading.Thread(target=attempt)
        thread.start()
        assert sent.wait(90)
        process.send_signal(signal.SIGKILL)
        thread.join(60)
    assert blobs(tmp_path) == []
    (tmp_path / "head").write_bytes(DATA)
    with running(tmp_path) as (process, address), RegistryClient.connect(address, wait=60) as registry:
        left = registry.missing([(NAME, len(DATA))])[0].committed_size
        assert 0 <= left <= after * 1024 * 1024
        with pytest.raises(NotFound):
            list(registry.download(NAME))
        seen: list[int] = []
        upload(registry, NamedFile("head", len(DATA), NAME), lambda: (tmp_path / "head").open("rb"), seen.append)
        assert seen[0] == left
        assert b"".join(registry.download(NAME)) == DATA
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--blobs", "nothing://x"), "nothing"),
        (("--database", "sqlite:////proc/nowhere/x.sqlite3"), "cannot open"),
        (("--database", "no url"), "cannot open"),
    ],
)
def test_what_cannot_be_opened_ends_the_start_with_a_reason(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    command = [sys.executable, "-m", "services.registry", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    ended = subprocess.run([*command, *flags], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


SERVICE = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]


def test_random_messages_are_answered_or_refused(serve: Serve) -> None:
    with serve() as served:
        flood(served.address, SERVICE)
