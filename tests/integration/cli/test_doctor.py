"""`kolm doctor` on models that cannot be served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from tests.fakes.tiny_model import make_tiny_model


def test_a_tokenizer_that_does_not_load_is_found_before_a_service_is_started_on_it(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    result = CliRunner().invoke(app, ["doctor", "--model", str(tmp_path)])
    assert result.exit_code == 2
    assert "the tokenizer does not load" in result.stderr


@pytest.mark.slow
def test_all_kernels_can_be_compiled_ahead_without_a_model(tmp_path: Path) -> None:
    """A second start compiles nothing."""
    folders = {"KOLM_KERNEL_CACHE": str(tmp_path / "kernels")}
    command = [sys.executable, "-m", "services.cli", "doctor", "--compile", "--model", "no/such/model"]
    for said in (True, False):
        done = subprocess.run(command, env={**os.environ, **folders}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"all kernels are compiled: {tmp_path / 'kernels'}\n"
        assert ("compiled 1 of" in done.stderr and "compiling what samples and drafts" in done.stderr) == said
    names = {path.name.partition("-")[0] for path in (tmp_path / "kernels").glob("*.o")}
    assert names >= {"rows", "cache_float32", "linear_q4_1", "integer_q4_1", "linear_bfloat16"}
