"""Effects of importing a service, and imports that a server or an auditor does without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.generation.target.config.config import read_config
from tests.fakes.heads import head_config, write_kolm
from tests.fakes.tiny_adapter import make_tiny_adapter
from tests.fakes.tiny_model import make_tiny_model


@pytest.mark.slow
@pytest.mark.parametrize("module", ["services.generation.serving", "services.auditor.serving", "services.training.run"])
def test_no_kernel_compiles_at_import(tmp_path: Path, module: str) -> None:
    folders = {"KOLM_KERNEL_CACHE": str(tmp_path / "kernels")}
    subprocess.run([sys.executable, "-c", f"import {module}"], env={**os.environ, **folders}, check=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


_SERVER = """
import sys
from pathlib import Path
from services.generation.target.without_torch import spare_torch
spare_torch()
import services.generation.serving
from services.generation.drafting.eagle3.loading import load_head
from services.generation.target.cpu import load_target
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


def test_settings_are_read_before_transformers_is_there() -> None:
    """It imports torch, which servers and auditors spare: settings come first, and name wrong folders at once."""
    code = "import sys, services.generation.settings, services.auditor.settings; "
    code += "assert not {'torch', 'transformers', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_server_without_the_router_s_messages_starts() -> None:
    code = "import sys; sys.modules['smg_grpc_proto'] = None; import services.generation.serving"
    subprocess.run([sys.executable, "-c", code], check=True)
