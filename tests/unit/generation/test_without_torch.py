"""Who serves or audits on the CPU does not import torch: not for a model, not for a head, not for an adapter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.generation.target.config.config import read_config
from tests.fakes.heads import head_config, write_kolm
from tests.fakes.tiny_adapter import make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model

_SERVER = """
import sys
from pathlib import Path
from services.generation.target.without_torch import spare_torch
spare_torch()
import services.generation.serving
from services.generation.drafting.eagle3.loading import load_head
from services.generation.target.loading import load_target
from services.generation.engine.text.tokenizer import Tokenizer
base, adapter, head = map(Path, sys.argv[1:])
target = load_target(base, adapters={"tiny": adapter}, cache_tokens=512)
load_head(head, target.config)
Tokenizer(base).encode_chat([{"role": "user", "content": "Hello."}])
"""
_AUDITOR = """
import sys
from services.generation.target.without_torch import spare_torch
spare_torch()
import services.auditor.serving, services.auditor.own_engine
"""


@pytest.mark.slow
@pytest.mark.parametrize("process", [_SERVER, _AUDITOR], ids=["server", "auditor"])
def test_torch_is_not_imported_and_is_still_there(process: str, tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base")
    parts = [base, make_tiny_adapter(tmp_path / "adapter", base), tmp_path / "head"]
    write_kolm(parts[2], head_config(read_config(base)))
    asked = "assert 'torch' not in sys.modules\nimport torch\ntorch.zeros(1)"
    done = subprocess.run(
        [sys.executable, "-c", process + asked, *map(str, parts)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
