"""Effects of importing a service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("module", ["services.generation.serving", "services.auditor.serving", "services.training.run"])
def test_no_kernel_compiles_at_import(tmp_path: Path, module: str) -> None:
    folders = {"KOLM_KERNEL_CACHE": str(tmp_path / "kernels")}
    subprocess.run([sys.executable, "-c", f"import {module}"], env={**os.environ, **folders}, check=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
