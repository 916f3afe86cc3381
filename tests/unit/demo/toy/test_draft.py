"""The draft model that is served beside the base where there is one."""

from __future__ import annotations

from pathlib import Path

from services.generation.target.folders.identity import tokenizer_cid
from services.generation.target.loading import load_target

_DEMO = Path(__file__).parents[4] / "demo" / "toy"
_LARGEST = 6_000_000  # bytes


def test_it_is_small_and_speaks_the_tokenizer_of_the_base() -> None:
    files = [file for file in (_DEMO / "draft").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= _LARGEST
    assert tokenizer_cid(_DEMO / "draft") == tokenizer_cid(_DEMO / "base")


def test_it_loads_as_a_target_of_two_layers() -> None:
    model = load_target(_DEMO / "draft", cache_tokens=256)
    assert model.config.layers == 2
