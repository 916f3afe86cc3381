"""`kolm doctor` on models that cannot be served."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.generation.target.kernels.compilation import cache_folder
from tests.fakes.tiny_model import make_tiny_model


def test_a_tokenizer_that_does_not_load_is_found_before_a_service_is_started_on_it(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    result = CliRunner().invoke(app, ["doctor", "--model", str(tmp_path)])
    assert result.exit_code == 2
    assert "the tokenizer does not load" in result.stderr


@pytest.mark.slow
def test_all_kernels_can_be_compiled_ahead_without_a_model(tmp_path: Path) -> None:
    """A second start compiles nothing. The first compiles where the other tests look, the second what is gone since."""
    copy = tmp_path / "kernels"
    compiled(cache_folder())
    with suppress(shutil.Error):  # files that tests beside this one are about to rename
        shutil.copytree(cache_folder(), copy)
    for path in (*copy.glob("rows-*.o"), *copy.rglob("*._two_best-*.nbi")):
        path.unlink()
    for said in (True, False):
        talk = compiled(copy)
        assert ("compiled 1 of 1 kernels: rows" in talk and "compiling what samples and drafts" in talk) == said
    names = {path.name.partition("-")[0] for path in copy.glob("*.o")}
    assert names >= {"rows", "cache_float32", "linear_q4_1", "integer_q4_1", "linear_bfloat16"}


def compiled(folder: Path) -> str:
    """What `kolm doctor --compile` says on stderr, its kernels in `folder`."""
    command = [sys.executable, "-m", "services.cli", "doctor", "--compile", "--model", "no/such/model"]
    environment = {**os.environ, "KOLM_KERNEL_CACHE": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"all kernels are compiled: {folder}\n"
    return done.stderr
