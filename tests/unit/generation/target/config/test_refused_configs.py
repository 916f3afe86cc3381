"""Configurations that are refused: odd ones, and sizes for which there is no room."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.generation.drafting.eagle3.loading import load_head
from services.generation.drafting.heads import HeadConfigInvalid
from services.generation.target.config.config import read_config
from services.generation.target.errors import ConfigInvalid, TargetError
from services.generation.target.sizes import MOST_HEAD_DIM
from tests.examples import grid
from tests.fakes.heads import head_config, write_kolm
from tests.fakes.tiny_families import FAMILIES, MODELS, WITH_EXPERTS, make_tiny_multimodal
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model
from tests.unit.generation.target.config.test_gguf_config import setting

_MISSING = object()
ODD = (_MISSING, None, "x", -1, 0, 1.5, True, [], [1], {})
RAW = (AttributeError, IndexError, ArithmeticError)
"""Errors of code that met what it did not expect; they name no member."""
_PARTS = ("text_config", "rope_parameters")
TEXT = {name: FAMILIES[name] for name in ("smollm3", "phi3", "gemma2", "gemma3", "gemma4")} | {
    name: WITH_EXPERTS[name] for name in ("qwen3_moe", "gpt_oss", "llama4")
}


ALIKE = {"smollm3, text", "phi3, text", "gemma2, text", "qwen3_moe, text", "gemma3", "mistral3", "qwen3_5", "qwen3_vl"}
"""Families whose members others have too."""


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
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in ALIKE else ())
        for name in (*(f"{each}, text" for each in TEXT), *MODELS)
    ],
)
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


WRONG = {
    "vocab_size": (2**40, 0, -1),
    "hidden_size": (2**40, 0, -1),
    "intermediate_size": (2**40, 0),
    "num_hidden_layers": (10**9, 2**40, 0, -1),
    "num_attention_heads": (2**40, 0, -4),
    "num_key_value_heads": (2**40, 0, -2),
    "head_dim": (MOST_HEAD_DIM + 1, MOST_HEAD_DIM + 2, 2048, 2**40, 15, 0, -2),
    "max_position_embeddings": (2**62, 0),
    "sliding_window": (2**64,),
}
"""By member of config.json."""

READ = """
import json, sys
from pathlib import Path
from services.generation.target.without_torch import hide_torch
hide_torch()
from services.generation.target.config.config import read_config
outcomes = []
for path in map(Path, sys.argv[1:]):
    try:
        read_config(path)
        outcomes.append(("read", ""))
    except Exception as error:
        outcomes.append((type(error).__name__, str(error)))
print(json.dumps(outcomes))
"""


def read_within_bounds(paths: list[Path]) -> list[tuple[str, str]]:
    """The outcome for each path in a process limited to a minute of CPU and 4 GiB: the error's type and message."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    done = subprocess.run(
        [sys.executable, "-c", READ, *map(str, paths)], check=True, stdout=subprocess.PIPE, preexec_fn=limit
    )
    return [(kind, words) for kind, words in json.loads(done.stdout)]


@pytest.mark.slow
@pytest.mark.parametrize("family", grid(3, ["gemma4", "gemma2", "qwen3_moe"]))
def test_config_json(tmp_path: Path, family: str) -> None:
    make_tiny_model(tmp_path / "good", **(FAMILIES | WITH_EXPERTS)[family])
    good = json.loads((tmp_path / "good" / "config.json").read_text())
    cases = [(name, value, {name: value}) for name, values in WRONG.items() for value in values]
    for layer, sizes in good.get("per_layer_config", {}).items():
        changes = [(value, {layer: sizes | {"head_dim": value}}) for value in WRONG["head_dim"]]
        cases += [(f"layer {layer}", value, {"per_layer_config": change}) for value, change in changes]
    for number, (_, _, change) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "config.json").write_text(json.dumps(good | change))
    outcomes = read_within_bounds([tmp_path / str(number) for number in range(len(cases))])
    for (name, value, _), (kind, words) in zip(cases, outcomes, strict=True):
        assert kind == "ConfigInvalid", (name, value, kind, words)
        assert name in words, (name, value, words)


@pytest.mark.slow
def test_gguf(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        (key, {key.replace(".", "__"): value})
        for key, values in {
            "block_count": (10**9, 2**32 - 1, 0),
            "embedding_length": (2**32 - 1, 0),
            "feed_forward_length": (2**32 - 1, 0),
            "attention.head_count": (2**32 - 1, 0),
            "attention.head_count_kv": (2**32 - 1, 0),
            "attention.key_length": (2**32 - 1, MOST_HEAD_DIM + 1, 0),
            "context_length": (2**32 - 1, 0),
        }.items()
        for value in values
    ]
    paths = [tmp_path / f"{number}.gguf" for number in range(len(cases))]
    for path, (_, fields) in zip(paths, cases, strict=True):
        make_tiny_gguf(path, change_metadata=setting(**fields))
    for case, (kind, words) in zip(cases, read_within_bounds(paths), strict=True):
        assert kind in ("ConfigInvalid", "WeightsInvalid"), (case, words)


def test_a_gguf_file_with_heads_that_are_too_wide_and_weights_that_fit(tmp_path: Path) -> None:
    one = setting(attention__head_count=1, attention__head_count_kv=1)
    path = make_tiny_gguf(tmp_path / "m.gguf", hidden=2 * MOST_HEAD_DIM, change_metadata=one)
    with pytest.raises(ConfigInvalid, match="head_dim"):
        read_config(path)


@pytest.mark.parametrize(
    ("name", "named"), [("head_dim", "head_dim"), ("hidden_size", "hidden_size"), ("num_hidden_layers", "layers")]
)
def test_heads_that_draft(tmp_path: Path, name: str, named: str) -> None:
    base = read_config(make_tiny_model(tmp_path / "base", layers=4))
    for value in (0, 2**40):
        write_kolm(tmp_path / "head", head_config(base))
        path = tmp_path / "head" / "config.json"
        document = json.loads(path.read_text())
        assert name in document
        path.write_text(json.dumps(document | {name: value}))
        with pytest.raises(HeadConfigInvalid, match=named):
            load_head(tmp_path / "head", base)
