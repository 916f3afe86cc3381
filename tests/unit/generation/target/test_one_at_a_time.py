"""A server and its auditor start together: what one of them compiles or probes, the other waits for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from services.generation.state_folder import one_at_a_time

_WORK = """
import sys, time
from pathlib import Path
from services.generation.state_folder import one_at_a_time
folder = Path(sys.argv[1])
print("asking", flush=True)
with one_at_a_time(folder):
    (folder / "inside").touch(exist_ok=False)
    print("inside", flush=True)
    sys.stdin.read()
    (folder / "inside").unlink()
"""


def _process(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asking\n"
    return process


def test_the_second_waits_for_the_first_even_if_that_is_killed(tmp_path: Path) -> None:
    with _process(tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "inside\n"
        with _process(tmp_path) as second:
            assert second.poll() is None
            (tmp_path / "inside").unlink()
            first.kill()
            out, _ = second.communicate("")
            assert (out, second.returncode) == ("inside\n", 0)


def test_a_folder_that_cannot_be_written_to_lets_everybody_in(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with one_at_a_time(tmp_path / "file" / "below"):
        pass
