"""Every tensor of a checkpoint is read, or refused by name, or unused by every reader of the model."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from services.generation.target.config.config import read_config
from services.generation.target.config.layer_specs import EMBEDDING, HEAD
from services.generation.target.errors import WeightsInvalid
from services.generation.target.identity import base_cid
from services.generation.target.weights import checked_weights, open_weights, output_name
from services.training.trainer import Ends
from tests.fakes.converted_gguf import convert
from tests.fakes.tiny_families import FAMILIES, make_tiny_multimodal
from tests.fakes.tiny_head import edit_json, edit_tensors
from tests.fakes.tiny_model import TOKENS, logits_of, make_tiny_model, target_of
from tests.numerics.arithmetic import assert_same_bits
from tests.numerics.reference_model import ReferenceModel

Tensors = dict[str, torch.Tensor]
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


def other_head(directory: Path, name: str = HEAD) -> Path:
    """A head that the embeddings do not repeat."""
    some = torch.Generator().manual_seed(3)

    def change(tensors: Tensors) -> None:
        shape = next(each for tensor, each in tensors.items() if tensor.endswith("embed_tokens.weight")).shape
        tensors[name] = 0.1 * torch.randn(shape, generator=some)

    edit_tensors(directory / FILE, change)
    return directory


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen3_5"])
def tied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    members = FAMILIES.get(request.param, {"architecture": request.param}) | {"tie_word_embeddings": True}
    return make_tiny_model(tmp_path_factory.mktemp("tied"), **members)


def copied(directory: Path, to: Path) -> Path:
    to.mkdir()
    for path in directory.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_a_head_of_a_tied_configuration_is_read_as_in_transformers(tied: Path, tmp_path: Path) -> None:
    directory = other_head(copied(tied, tmp_path / "m"))
    assert output_name(open_weights(directory), read_config(directory)) == HEAD
    found = logits_of(target_of(directory))
    published = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = published(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    untied = copied(directory, tmp_path / "untied")
    edit_json(untied / "config.json", tie_word_embeddings=False)
    assert_same_bits(found, logits_of(target_of(untied)))
    reference = ReferenceModel(read_config(directory), open_weights(directory))
    assert_same_bits(found[:8], reference.forward(TOKENS[:8]).logits)
    assert base_cid(directory) != base_cid(tied)


def test_a_head_trains_on_the_matrix_that_is_served(tied: Path, tmp_path: Path) -> None:
    directory = other_head(copied(tied, tmp_path / "m"))
    ends = Ends.read(directory, read_config(directory))
    assert torch.equal(ends.head, load_file(directory / FILE)[HEAD])
    ends = Ends.read(tied, read_config(tied))
    assert torch.equal(ends.head, ends.embeddings)


def test_a_head_that_repeats_the_embeddings_is_them(tied: Path, tmp_path: Path) -> None:
    directory = copied(tied, tmp_path / "m")
    edit_tensors(directory / FILE, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}))
    assert output_name(checked_weights(directory, read_config(directory)), read_config(directory)) == EMBEDDING
    assert_same_bits(logits_of(target_of(directory)), logits_of(target_of(tied)))


def test_one_weight_of_a_tied_head_decides(tied: Path, tmp_path: Path) -> None:
    directory = copied(tied, tmp_path / "m")

    def change(tensors: Tensors) -> None:
        tensors[HEAD] = tensors[EMBEDDING].clone()
        tensors[HEAD].view(-1)[-1] += 1

    edit_tensors(directory / FILE, change)
    assert output_name(open_weights(directory), read_config(directory)) == HEAD


def test_a_tied_head_of_another_storage_is_read(tied: Path, tmp_path: Path) -> None:
    directory = copied(tied, tmp_path / "m")
    edit_tensors(directory / FILE, lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].to(torch.float16)}))
    assert output_name(open_weights(directory), read_config(directory)) == HEAD


@pytest.mark.parametrize(
    "change", [lambda head: head[:-1].clone(), lambda head: head.to(torch.int8)], ids=["shape", "dtype"]
)
def test_a_tied_head_of_another_shape_or_dtype_is_refused(
    change: Callable[[torch.Tensor], torch.Tensor], tied: Path, tmp_path: Path
) -> None:
    directory = copied(tied, tmp_path / "m")
    edit_tensors(directory / FILE, lambda tensors: tensors.update({HEAD: change(tensors[EMBEDDING])}))
    with pytest.raises(WeightsInvalid, match=re.escape(HEAD)):
        checked_weights(directory, read_config(directory))


@pytest.mark.parametrize("outer", [True, False], ids=["tied outside", "untied outside"])
@pytest.mark.parametrize("inner", [True, False], ids=["tied in text_config", "untied in text_config"])
@pytest.mark.parametrize("family", ["gemma3", "mistral3", "qwen3_vl"])
def test_a_wrapper_that_contradicts_its_part_for_text_reads_the_head(
    family: str, outer: bool, inner: bool, tmp_path: Path
) -> None:
    make_tiny_multimodal(tmp_path, family)
    names = load_file(tmp_path / FILE)
    head = "language_model.lm_head.weight" if any(name.startswith("language_model.") for name in names) else HEAD
    other_head(tmp_path, head)
    document = json.loads((tmp_path / "config.json").read_bytes())
    text = document["text_config"] | {"tie_word_embeddings": inner}
    edit_json(tmp_path / "config.json", tie_word_embeddings=outer, text_config=text)
    weights, config = open_weights(tmp_path), read_config(tmp_path)
    assert output_name(weights, config) == HEAD
    model = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits_of(target_of(tmp_path)), expected, rtol=1e-4, atol=2e-5)


def test_output_of_a_gguf_file_is_read(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "d", tie_word_embeddings=True)
    untied = make_tiny_model(tmp_path / "u", tie_word_embeddings=False)
    head = load_file(untied / FILE)[HEAD].numpy()
    path = convert(
        directory, tmp_path / "m.gguf", change_tensors=lambda tensors: tensors.update({"output.weight": (0, head)})
    )
    assert output_name(open_weights(path), read_config(path)) == HEAD
    other = other_head(copied(directory, tmp_path / "o"))
    edit_tensors(other / FILE, lambda tensors: tensors.update({HEAD: torch.from_numpy(head)}))
    assert_same_bits(logits_of(target_of(path)), logits_of(target_of(other)))


UNREAD: dict[str, tuple[str, Callable[[Tensors], Mapping[str, torch.Tensor]], str]] = {
    "divisors of frequencies, which only GGUF files have": (
        "llama", lambda _: {"rope_freqs.weight": torch.ones(8)}, "rope_freqs.weight",
    ),
    "a matrix under two names": (
        "qwen3_5",
        lambda tensors: {"language_model.model.embed_tokens.weight": tensors[EMBEDDING] + 1},
        EMBEDDING,
    ),
    "the last norm under two names": (
        "lfm2", lambda tensors: {"model.norm.weight": torch.ones(72)}, "model.norm.weight",
    ),
    "a vector with and without .weight": (
        "gpt_oss",
        lambda tensors: {"model.layers.0.self_attn.sinks.weight": torch.ones(4)},
        "model.layers.0.self_attn.sinks.weight",
    ),
    "scales without blocks": (
        "gpt_oss",
        lambda tensors: {"model.layers.0.mlp.experts.down_proj_scales": torch.ones(4)},
        "model.layers.0.mlp.experts.down_proj_scales",
    ),
    "an expert in a stack and by itself": (
        "llama4",
        lambda tensors: {"model.layers.1.feed_forward.experts.0.down_proj.weight": torch.ones(64, 48)},
        "model.layers.1.feed_forward.experts.0.down_proj.weight",
    ),
    "attention in a layer of convolutions": (
        "lfm2",
        lambda _: {"model.layers.0.self_attn.q_proj.weight": torch.ones(72, 72)},
        "model.layers.0.self_attn.q_proj.weight",
    ),
    "a projection that no state has": (
        "qwen3_5",
        lambda _: {"model.layers.0.linear_attn.in_proj_c.weight": torch.ones(4, 64)},
        "model.layers.0.linear_attn.in_proj_c.weight",
    ),
    "keys of a layer that computes its own under another name": (
        "llama",
        lambda tensors: {"model.layers.0.self_attn.k_norm.weight": torch.ones(16)},
        "model.layers.0.self_attn.k_norm.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNREAD)
def test_a_tensor_that_would_not_be_read_is_refused_by_name(case: str, tmp_path: Path) -> None:
    family, added, named = UNREAD[case]
    make_tiny_model(tmp_path, **FAMILIES.get(family, {"architecture": family}))
    edit_tensors(tmp_path / FILE, lambda tensors: tensors.update(added(tensors)))
    with pytest.raises(WeightsInvalid, match=re.escape(named)):
        checked_weights(tmp_path, read_config(tmp_path))


def sharded(model: Path) -> Path:
    """The same model in two files."""
    tensors = load_file(model / FILE)
    names = sorted(tensors)
    parts = {ONE: names[0::2], TWO: names[1::2]}
    for shard, members in parts.items():
        save_file({name: tensors[name] for name in members}, model / shard)
    weight_map = {name: shard for shard, members in parts.items() for name in members}
    (model / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (model / FILE).unlink()
    return model


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model", layers=1)


def test_sharded_weights_load_like_whole_ones(whole: Path) -> None:
    config, name, logits = read_config(whole), base_cid(whole), logits_of(target_of(whole))
    sharded(whole)
    assert read_config(whole) == config
    assert base_cid(whole) != name
    assert_same_bits(logits_of(target_of(whole)), logits)


def weight_map(model: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((model / INDEX).read_bytes())["weight_map"]
    return found


def relisted(model: Path, **changes: Any) -> None:
    (model / INDEX).write_text(json.dumps({"weight_map": weight_map(model) | changes}))


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def in_two_shards(model: Path) -> None:
    name, tensor = next(iter(load_file(model / ONE).items()))
    edit_tensors(model / TWO, lambda tensors: tensors.update({name: tensor + 1}))


def swapped(model: Path) -> None:
    name, file = next(iter(weight_map(model).items()))
    relisted(model, **{name: TWO if file == ONE else ONE})


SETS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "a single file and an index": (lambda m: (m / FILE).write_bytes((m / ONE).read_bytes()), (FILE, INDEX)),
    "shards of another number": (
        lambda m: (m / "model-00001-of-00003.safetensors").write_bytes((m / ONE).read_bytes()),
        ("model-00001-of-00003.safetensors", INDEX),
    ),
    "a tensor in two shards": (in_two_shards, (INDEX, TWO)),
    "an index that lists a tensor elsewhere": (swapped, (INDEX, ONE)),
    "an index that lists a tensor that is nowhere": (lambda m: relisted(m, more=ONE), (INDEX, ONE)),
    "an index that lists a tensor in no file": (
        lambda m: edit_tensors(m / TWO, lambda tensors: tensors.update({"more": torch.ones(1)})), (INDEX, TWO),
    ),
    "an index with a number for a file": (lambda m: relisted(m, more=1), (INDEX,)),
    "an index of nothing": (lambda m: (m / INDEX).write_text('{"weight_map": {}}'), (INDEX,)),
}  # fmt: skip


@pytest.mark.parametrize("case", SETS)
def test_two_sets_of_weights_are_refused_naming_the_files(case: str, whole: Path) -> None:
    change, named = SETS[case]
    model = sharded(whole)
    config = read_config(model)
    checked_weights(model, config)
    change(model)
    with pytest.raises(WeightsInvalid) as refused:
        checked_weights(model, config)
    assert [name for name in named if name not in str(refused.value)] == []


def test_a_single_file_and_shards_without_an_index_are_refused(whole: Path) -> None:
    (whole / ONE).write_bytes((whole / FILE).read_bytes())
    for refuse in (lambda: open_weights(whole), lambda: base_cid(whole)):
        with pytest.raises(WeightsInvalid, match=re.escape(ONE)):
            refuse()


def test_an_index_may_name_the_one_file(whole: Path) -> None:
    names = open_weights(whole).names()
    (whole / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, FILE)}))
    assert open_weights(whole).names() == names
