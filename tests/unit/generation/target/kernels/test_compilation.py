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


def test_threads_that_ask_for_a_module_together_share_one_compilation(tmp_path: Path) -> None:
    environment = os.environ | {CACHE: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", _TOGETHER], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.rglob("pack_q8_0-*"))) == 1
