"""Forked workers report each test that passes, fails, is skipped, or ends its worker."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PASSES = "from pathlib import Path\ndef test_passes():\n    Path(__file__).with_suffix('.ran').touch(exist_ok=False)\n"
FAILS = f"{PASSES}def test_fails():\n    assert not 'reached'\n"
ENDS = f"import os\n{PASSES}def test_ends():\n    os._exit(0)\n"
SKIPPED = "import pytest\npytest.skip('not here', allow_module_level=True)\n"
THREAD = f"import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n{PASSES}"


def run(folder: Path, *modules: str) -> tuple[int, str, set[str]]:
    """The exit code and the output of two workers on modules of these sources, and the numbers of modules that ran."""
    for number, source in enumerate(modules):
        (folder / f"test_{number}.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:asyncio")
    command = [sys.executable, "-m", "tests.workers", "2", "-q", "--dist=loadscope", f"--rootdir={folder}", str(folder)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout, {path.stem.removeprefix("test_") for path in folder.glob("*.ran")}


def test_each_test_runs_once_and_is_reported(tmp_path: Path) -> None:
    code, output, ran = run(tmp_path, PASSES, FAILS, SKIPPED, PASSES)
    assert (code, ran) == (1, set("013"))
    assert "1 failed, 3 passed, 1 skipped" in output


def test_a_test_that_ends_its_worker_has_failed(tmp_path: Path) -> None:
    code, output, _ = run(tmp_path, ENDS)
    assert code == 1
    assert "1 failed, 1 passed" in output


def test_no_worker_is_forked_from_a_process_with_threads(tmp_path: Path) -> None:
    code, _, ran = run(tmp_path, PASSES, THREAD)
    assert (code, ran) == (1, set())
