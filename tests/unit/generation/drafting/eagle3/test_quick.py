"""Compiled functions of the head are kept per version of all that they are compiled from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from numba import config

from services.generation.drafting.eagle3 import quick as module
from services.generation.drafting.eagle3.products import multiply, product_share
from services.generation.drafting.eagle3.quick import quick
from services.generation.target.kernel_cache import version_of


def test_every_file_with_a_compiled_function_of_the_head_counts() -> None:
    package = Path(module.__file__).parent
    marks = re.compile(r"^@(quick|callback)|^def quick\(|\bintrinsic\(", re.MULTILINE)
    marked = {file.name for file in package.glob("*.py") if marks.search(file.read_text())}
    assert marked == {source for source in module._SOURCES if not source.startswith("..")}
    assert all((package / source).exists() for source in module._SOURCES)


def test_they_lie_inside_the_folder_of_the_targets_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))

    @quick
    def twice(value: int) -> int:
        return 2 * value

    assert twice(4) == 8
    assert str(tmp_path) == config.CACHE_DIR
    (kernels,) = tmp_path.iterdir()
    assert [folder.name for folder in kernels.iterdir()] == [f"head-{version_of(module._PACKAGE, module._SOURCES)}"]


def test_callbacks_too() -> None:
    """A share of a product calls what other files compile: beside the target's kernels it would outlive a change."""
    assert Path(product_share._cache.cache_path).parent.name == Path(multiply._cache.cache_path).parent.name
    assert f"head-{version_of(module._PACKAGE, module._SOURCES)}" in product_share._cache.cache_path
