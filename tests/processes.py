"""Servers as processes of their own, and ports that a test has to know before or after a server listens there."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_BELOW_EPHEMERAL = range(20_000, 32_768)  # Linux hands out 32768 and more, for port 0 and for outgoing connections


def known_port() -> int:
    """A free port of 127.0.0.1 that nobody gets who does not ask for it, so that a server may come back to it."""
    while True:
        port = random.SystemRandom().choice(_BELOW_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


PATIENCE = 240.0
"""Seconds that anything may take on a busy machine; only a test that fails gets there."""


@contextmanager
def started(command: Sequence[str], ready: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address that it has put into its ready file. Killed at the end."""
    ready.unlink(missing_ok=True)
    process = subprocess.Popen([*command, "--ready-file", str(ready)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + PATIENCE
    try:
        while not ready.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline, "it did not start to serve"
            time.sleep(0.02)
        yield process, ready.read_text().strip()
    finally:
        process.kill()
        process.communicate()
