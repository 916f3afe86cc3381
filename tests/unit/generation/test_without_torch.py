"""Who serves or audits on the CPU does not import torch: not for a model, not for a head, not for an adapter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "demo" / "toy"
_SERVER = f"""
import sys
from pathlib import Path
from services.generation.target.without_torch import spare_torch
spare_torch()
import services.generation.serving
from services.generation.drafting.eagle3.loading import load_head
from services.generation.target.loading import load_target
from services.generation.engine.text.tokenizer import Tokenizer
target = load_target(Path("{DEMO}/base"), adapters={{"courteous": Path("{DEMO}/adapters/courteous")}}, cache_tokens=512)
load_head(Path("{DEMO}/head"), target.config)
Tokenizer(Path("{DEMO}/base")).encode_chat([{{"role": "user", "content": "Hello."}}])
"""
_AUDITOR = """
import sys
from services.generation.target.without_torch import spare_torch
spare_torch()
import services.auditor.serving, services.auditor.replays.own_engine
"""


@pytest.mark.slow
@pytest.mark.parametrize("process", [_SERVER, _AUDITOR], ids=["server", "auditor"])
def test_torch_is_not_imported_and_is_still_there(process: str) -> None:
    asked = "assert 'torch' not in sys.modules\nimport torch\ntorch.zeros(1)"
    done = subprocess.run([sys.executable, "-c", process + asked], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
