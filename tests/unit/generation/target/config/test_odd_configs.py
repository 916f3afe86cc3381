"""Whatever stands in a member of config.json, what is raised is of the target's family and names the member."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.generation.target.config.config import read_config
from services.generation.target.errors import TargetError
from tests.fakes.tiny_families import FAMILIES, WITH_EXPERTS
from tests.fakes.tiny_model import make_tiny_model
from tests.fakes.tiny_multimodal import MODELS, make_tiny_multimodal

_MISSING = object()
ODD = (_MISSING, None, "x", -1, 0, 1.5, True, [], [1], {})
RAW = (AttributeError, IndexError, ArithmeticError)
"""Errors of code that met what it did not expect; they name no member."""
_PARTS = ("text_config", "rope_parameters")
TEXT = {name: FAMILIES[name] for name in ("smollm3", "phi3", "gemma2", "gemma3", "gemma4")} | {
    name: WITH_EXPERTS[name] for name in ("qwen3_moe", "gpt_oss", "llama4")
}


def written(directory: Path, name: str) -> dict[str, Any]:
    if name in MODELS:
        make_tiny_multimodal(directory, name)
    else:
        make_tiny_model(directory, **TEXT[name.removesuffix(", text")])
    document: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return document


def changed(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each member, and the document with something else in its place; members of nested objects too."""
    for name, value in document.items():
        others = {key: item for key, item in document.items() if key != name}
        for odd in ODD:
            yield name, others if odd is _MISSING else {**others, name: odd}
        if name in _PARTS and isinstance(value, dict):
            for inner, part in changed(value):
                yield inner, {**document, name: part}


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f"{each}, text" for each in TEXT), *MODELS])
def test_a_member_of_another_kind_is_read_or_refused_by_its_name(tmp_path: Path, name: str) -> None:
    document = written(tmp_path, name)
    read_config(tmp_path)
    refused, leaked = set(), []
    for member, other in changed(document):
        (tmp_path / "config.json").write_text(json.dumps(other))
        try:
            read_config(tmp_path)
        except TargetError as error:
            refused.add(member)
            leaked += [(member, repr(cause)) for cause in causes(error) if isinstance(cause, RAW)]
    assert leaked == []
    assert {"architectures", "model_type", "hidden_size", "num_hidden_layers"} <= refused
