"""Servers as processes of their own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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
