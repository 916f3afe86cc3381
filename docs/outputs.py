"""Write what the pages show of the output of commands, by running these: `python -m docs.outputs` (or `make outputs`).

In Markdown a block ```text is a recording. Its lines with `$ ` are run, in the order of PAGES, against one `kolm up` as
README starts it: `kolm`, which may find that a verification fails, or `sed`. A line with `# ` waits until an auditor
has judged every receipt.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from services.cli.frame.exits import VERIFICATION_FAILED
from services.cli.up.local_services import Addresses

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "structured-output.md")
_BLOCK = re.compile(r"(?<=^```text\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(\w+\.json)`:\n\n```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COLUMNS = 100
_LONGEST = 140  # characters of a line, unless the command prints longer ones
_PATIENCE = 300.0  # seconds until an auditor has judged what was asked


@dataclass(frozen=True, slots=True)
class Step:
    """A command line, and its output."""

    line: str
    output: str


def blocks(page: Path) -> list[list[Step]]:
    """The recordings of a page."""
    parts = [
        re.split(r"^(\$ .*|# .*)\n", each, flags=re.MULTILINE)[1:] for each in _BLOCK.findall(page.read_text("utf-8"))
    ]
    return [[Step(line, output) for line, output in zip(each[::2], each[1::2], strict=True)] for each in parts]


def up() -> str:
    """How the README starts the services."""
    found = re.search(r"^ {4}(kolm up .*)$", PAGES[0].read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def write_files(folder: Path) -> None:
    """The files that pages show before commands that read them, as "`person.json`:" and a block of JSON."""
    for page in PAGES:
        for name, text in _FILE.findall(page.read_text("utf-8")):
            (folder / name).write_text(text, "utf-8")


def main() -> None:
    """Write all outputs again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        with _up(folder) as environment:
            for page in PAGES:
                new = iter([_printed([_run(step.line, folder, environment) for step in each]) for each in blocks(page)])
                page.write_text(_BLOCK.sub(lambda _: next(new), page.read_text("utf-8")), "utf-8")  # noqa: B023


def _printed(steps: list[Step]) -> str:
    lines = [each.rstrip() for step in steps for each in (step.line, *step.output.splitlines())]
    return "\n".join(each if each.startswith("$ ") else textwrap.fill(each, _LONGEST) for each in lines) + "\n"


def _run(line: str, folder: Path, environment: dict[str, str]) -> Step:
    if line.startswith("$ "):
        run = _sed if line.startswith("$ sed ") else _kolm
        return Step(line, run(line[2:], folder, environment))
    deadline = time.monotonic() + _PATIENCE
    while not all(each["outcome"] for each in json.loads(_kolm("kolm receipts list --json", folder, environment))):
        if time.monotonic() > deadline:
            raise TimeoutError("the auditor has not judged every receipt")
    return Step(line, "")


@contextmanager
def _up(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of commands that ask services, which run on free ports meanwhile."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("KOLM_")}
    environment = {**own, "COLUMNS": str(_COLUMNS), "TERM": "dumb", "OMP_NUM_THREADS": "1"}
    free = [f"--{name}-port=0" for name in asdict(Addresses("", "", ""))]
    command = [*_words(up()), *free, "--json"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            asked = json.loads(process.stdout.readline())
            named = {f"KOLM_{name.upper()}": place for name, place in asked.items() if place}
            yield environment | {
                name: place for name, place in named.items() if name not in ("KOLM_EXPLORER", "KOLM_HTTP")
            }
        finally:
            process.terminate()


def _sed(line: str, folder: Path, environment: dict[str, str]) -> str:
    """Edit a file of the folder."""
    subprocess.run(shlex.split(line), cwd=folder, env=environment, check=True)
    return ""


def _kolm(line: str, folder: Path, environment: dict[str, str]) -> str:
    """The output of a command. Raises RuntimeError if it fails, unless a verification does: that is to be shown."""
    done = subprocess.run(
        _words(line), cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, VERIFICATION_FAILED):
        raise RuntimeError(f"{line} ended with {done.returncode}: {done.stdout}")
    return done.stdout.replace(f"{ROOT}/", "")


def _words(line: str) -> list[str]:
    program, *words = shlex.split(line)
    assert program == "kolm"
    return [sys.executable, "-m", "services.cli", *(word.replace("demo/", f"{ROOT}/demo/") for word in words)]


if __name__ == "__main__":
    main()
