"""Workers run each test once, and report what fails and who ends."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WRITES = "from pathlib import Path\nran = Path(__file__).with_suffix('.ran')\n"
GOOD = f"{WRITES}def test_runs():\n    ran.touch(exist_ok=False)\n"
FAILS = f"{GOOD}def test_fails():\n    assert not 'reached'\n"
ENDS = f"import os\n{GOOD}def test_ends():\n    os._exit(3)\n"
FIXTURE = (
    "import pytest\n@pytest.fixture(scope='session', autouse=True)\ndef late():\n    yield\n    assert not 'ended'\n"
)
STARTS = f"import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n{GOOD}"


def run(folder: Path, *modules: str, workers: int = 2) -> tuple[int, str, set[str]]:
    """The exit code and the output of pytest over modules with these sources, and the names of those that have run."""
    for number, source in enumerate(modules):
        (folder / f"test_{number}.py").write_text(source)
    options = [
        "-p",
        "tests.workers",
        f"--workers={workers}",
        "-c",
        os.devnull,
        f"--rootdir={folder}",
        "-p",
        "no:asyncio",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", *options, str(folder)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout, {path.stem[len("test_") :] for path in folder.glob("*.ran")}


def test_each_test_runs_once_and_one_that_fails_or_ends_its_worker_is_reported(tmp_path: Path) -> None:
    code, output, ran = run(tmp_path, GOOD, FAILS, GOOD, ENDS)
    assert (code, ran) == (1, set("0123"))
    assert "2 failed, 4 passed" in output


def test_tests_that_a_worker_leaves_behind_have_failed(tmp_path: Path) -> None:
    code, output, ran = run(tmp_path, ENDS, GOOD, workers=1)
    assert (code, ran) == (1, {"0"})
    assert "2 failed, 1 passed" in output


def test_a_fixture_that_fails_where_a_worker_ends_is_reported(tmp_path: Path) -> None:
    code, output, ran = run(tmp_path, FIXTURE + GOOD, workers=1)
    assert (code, ran) == (1, {"0"})
    assert "1 passed, 1 error" in output


def test_no_worker_is_forked_from_a_process_with_threads(tmp_path: Path) -> None:
    code, _, ran = run(tmp_path, GOOD, STARTS)
    assert (code, ran) == (4, set())
