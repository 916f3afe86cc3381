"""Compiled kernels of a process with several threads."""

import os
import subprocess
import sys
from pathlib import Path

from services.generation.target.kernels.compilation import CACHE

_TOGETHER = """
from concurrent.futures import ThreadPoolExecutor
from services.generation.target.kernels.compilation import kernels
with ThreadPoolExecutor(4) as pool:
    (addresses,) = {tuple(found.items()) for found in pool.map(kernels, ["pack_q8_0"] * 4)}
"""


_RELATIVE = """
from services.generation.target.kernels.compilation import compile_ahead
compile_ahead(["pack_q8_0"])
"""


_WITHOUT_ROOM = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from services.generation.target.kernels.compilation import compile_ahead, kernels
compile_ahead(["pack_q8_0"])
assert kernels("pack_q8_0")
"""


def _objects(code: str, folder: Path, cache: str) -> list[Path]:
    """The objects in a folder after a process that had it as working directory."""
    environment = os.environ | {CACHE: cache}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(folder.rglob("pack_q8_0-*"))


def test_compilers_write_to_a_relative_folder_of_the_process_that_started_them(tmp_path: Path) -> None:
    assert len(_objects(_RELATIVE, tmp_path, "kernels")) == 1


def test_threads_that_ask_for_a_module_together_share_one_compilation(tmp_path: Path) -> None:
    assert len(_objects(_TOGETHER, tmp_path, str(tmp_path))) == 1


def test_a_full_disk_is_no_reason_not_to_start_and_has_no_parts_of_files(tmp_path: Path) -> None:
    assert _objects(_WITHOUT_ROOM, tmp_path, str(tmp_path)) == []
