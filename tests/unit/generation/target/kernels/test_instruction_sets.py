"""Every instruction set that this CPU has gives the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.generation.target.kernels.machine import MACHINES, RESTRICTION, _able, this_machine
from tests.fakes.tiny_model import make_tiny_model
from tests.numerics.digest import logits_digest

ROOT = Path(__file__).parents[5]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MACHINES])
def test_vectors_and_a_whole_model_on_one_instruction_set(tmp_path: Path, name: str) -> None:
    if name not in _able():
        pytest.skip(f"this CPU has no {name}")
    if name == this_machine().name:
        pytest.skip(f"{name} is what the other tests run on")
    directory = make_tiny_model(tmp_path, architecture="qwen3", hidden=96, head_dim=24)
    command = [sys.executable, "-m", "tests.numerics.digest", str(directory)]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ | {RESTRICTION: name}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [name, logits_digest(directory)]
