"""Contenders of the benchmarks."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import KolmEngine
from services.generation.target.config.config import read_config
from tests.fakes.heads import block_config, head_config, write_kolm, write_kolm_block
from tests.fakes.tiny_model import make_tiny_model


@pytest.mark.parametrize(
    ("method", "config", "write"), [("eagle3", head_config, write_kolm), ("block", block_config, write_kolm_block)]
)
def test_a_head_drafts_and_leaves_the_tokens_as_they_are(method: str, config: Any, write: Any, tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base")
    write(tmp_path / "head", config(read_config(base)))
    engine = KolmEngine(base, tmp_path / "head")
    plain, drafted = (engine.contender(name).run([[1, 2, 3]], 0.0, 8) for name in ("off", method))
    assert (drafted.tokens, dict(drafted.passes_by_method)[method] > 0) == (plain.tokens, True)
