"""Heads in the three layouts, as published: reading, defaults of missing members, refusals."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.generation.drafting.eagle3.checkpoint import KOLM_LAYOUT, parse_config
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.eagle3.loading import load_head
from services.generation.drafting.heads import HeadConfigInvalid, HeadForAnotherBase, HeadNotFound, HeadWeightsInvalid
from services.generation.drafting.methods import load_head as load_draft_head
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.config.config import TargetConfig
from services.generation.target.cpu import CpuTarget
from tests.fakes.engine_runs import run
from tests.fakes.heads import head_config, write_kolm, write_safeailab, write_speculators
from tests.fakes.tiny_families import FAMILIES, draw_vectors
from tests.fakes.tiny_head import edit_json, edit_tensors
from tests.fakes.tiny_model import TOKENS, make_tiny_model, target_of

LAYOUTS = {"kolm": write_kolm, "safeailab": write_safeailab, "speculators": write_speculators}


@pytest.mark.parametrize("origin", LAYOUTS)
def test_a_head_comes_back_as_it_was_written(origin: str, base: TargetConfig, tmp_path: Path) -> None:
    config = head_config(base, feature_layers=(2, 4, 5))  # SafeAILab's default for eight layers
    tensors = LAYOUTS[origin](tmp_path, config)
    head = load_head(tmp_path, base)
    assert (head.origin, head.config) == (origin, config)
    assert all(np.array_equal(head.tensors[name], tensors[name].numpy()) for name in head.tensors)
    assert np.array_equal(head.target_ids, np.arange(config.draft_vocab_size) + tensors["d2t"].numpy())


def test_ids_of_safeailab_name_outputs_and_those_of_speculators_are_literal(base: TargetConfig, tmp_path: Path) -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}
    write_safeailab(tmp_path / "flat", head_config(base), **ids)
    write_safeailab(tmp_path / "nested", head_config(base), eagle_config=ids | {"use_aux_hidden_state": True})
    write_speculators(tmp_path / "literal", head_config(base), **ids)
    found = {name: load_head(tmp_path / name, base) for name in ("flat", "nested", "literal")}
    assert {name: head.config.feature_layers for name, head in found.items()} == {
        "flat": (2, 4, 6), "nested": (2, 4, 6), "literal": (1, 3, 5),
    }  # fmt: skip
    assert (1, 3, 5) in found["flat"].other_layers
    assert (2, 4, 6) in found["literal"].other_layers
    assert found["flat"].config.feature_layers not in found["flat"].other_layers


def test_a_head_that_specforge_may_have_trained_otherwise_than_it_says_is_warned_of(
    base: TargetConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for norm_output, write, warned in ((True, write_safeailab, 1), (False, write_safeailab, 0), (True, write_kolm, 0)):
        folder = tmp_path / f"{norm_output}{write.__name__}"
        write(folder, head_config(base, norm_output=norm_output, fc_norm=True))
        caplog.clear()
        load_head(folder, base)
        assert sum("norm_output" in each for each in caplog.messages) == warned


def test_layers_that_are_not_named_are_low_middle_and_high(base: TargetConfig, tmp_path: Path) -> None:
    write_safeailab(tmp_path / "a", head_config(base))
    write_speculators(tmp_path / "b", head_config(base), eagle_aux_hidden_state_layer_ids=None)
    assert load_head(tmp_path / "a", base).config.feature_layers == (2, 4, 5)
    assert load_head(tmp_path / "b", base).config.feature_layers == (2, 4, 5)


def test_speculators_norms_before_the_residual_unless_told_otherwise(base: TargetConfig, tmp_path: Path) -> None:
    write_speculators(tmp_path / "silent", head_config(base), norm_before_residual=...)
    write_speculators(tmp_path / "off", head_config(base), norm_before_residual=False)
    write_safeailab(tmp_path / "flat", head_config(base))
    assert load_head(tmp_path / "silent", base).config.norm_before_residual
    assert not load_head(tmp_path / "off", base).config.norm_before_residual
    assert not load_head(tmp_path / "flat", base).config.norm_before_residual


def test_the_variants_of_published_heads_load(base: TargetConfig, tmp_path: Path) -> None:
    gpt_oss = head_config(base, norm_before_fc=True, norm_before_residual=True)
    newer = head_config(base, fc_norm=True, norm_output=True, feature_layers=(2, 4, 5))
    embedded = head_config(base, own_embeddings=True, hidden_size=48, feature_layers=(2, 4, 5))
    write_speculators(tmp_path / "a", gpt_oss)
    write_safeailab(tmp_path / "b", newer)
    write_safeailab(tmp_path / "c", embedded, target_hidden_size=base.hidden_size)
    deep = head_config(base, layers=3)
    write_speculators(tmp_path / "d", deep)
    assert [load_head(tmp_path / name, base).config for name in "abcd"] == [gpt_oss, newer, embedded, deep]


def test_kolms_config_says_everything_and_comes_back(base: TargetConfig) -> None:
    config = head_config(base, norm_output=True)
    document = KOLM_LAYOUT.document(config)
    assert parse_config(json.loads(json.dumps(document))) == config
    for member in document:
        with pytest.raises(HeadConfigInvalid, match=member):
            parse_config({key: value for key, value in document.items() if key != member})
    with pytest.raises(HeadConfigInvalid, match="magic"):
        parse_config(document | {"magic": 1})


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "a number as text": ({"hidden_size": "64"}, "hidden_size"),
    "a truth as a number": ({"fc_norm": 1}, "fc_norm"),
    "no layers": ({"feature_layers": []}, "feature_layers"),
    "layers that are no numbers": ({"feature_layers": [1, "2", 3]}, "feature_layers"),
    "an odd head": ({"head_dim": 15}, "head_dim"),
    "heads that do not divide": ({"num_key_value_heads": 3}, "multiple"),
    "nothing": ({"draft_vocab_size": 0}, "draft_vocab_size"),
    "more than the base has": ({"draft_vocab_size": 10**9}, "draft_vocab_size"),
    "another layout": ({"layout": "kolm.eagle4.v1"}, "layout"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_wrong_config_is_refused_by_member(case: str, base: TargetConfig, tmp_path: Path) -> None:
    changed, names = CONFIGS[case]
    document = KOLM_LAYOUT.document(head_config(base)) | changed
    with pytest.raises(HeadConfigInvalid, match=names):
        parse_config(document)


@pytest.mark.parametrize("architectures", [None, 5, {"a": 1}, ["LlamaForCausalLM2"]], ids=str)
def test_a_published_config_of_no_known_architecture_is_refused(
    architectures: object, base: TargetConfig, tmp_path: Path
) -> None:
    write_safeailab(tmp_path, head_config(base))
    edit_json(tmp_path / "config.json", architectures=architectures)
    for load in (load_head, load_draft_head):
        with pytest.raises(HeadConfigInvalid, match="architectures"):
            load(tmp_path, base)


NVIDIAS = {
    "eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
    "next_layer_regular": True, "parallel_draft_step": 1, "parallel_draft_heads_num_layers": None,
}  # fmt: skip
"""eagle_config as NVIDIA's exporter writes it."""
OTHER_CHOICES: list[tuple[str, object]] = [
    ("use_aux_hidden_state", False), ("use_input_layernorm_in_first_layer", False), ("use_last_layernorm", False),
    ("use_mtp_layernorm", True), ("next_layer_regular", False), ("parallel_draft_step", 4),
    ("parallel_draft_heads_num_layers", 2), ("use_aux_hidden_state", 1),
]  # fmt: skip


def test_choices_of_nvidias_exporter_that_are_followed_load(base: TargetConfig, tmp_path: Path) -> None:
    write_safeailab(tmp_path, head_config(base), eagle_config=NVIDIAS | {"norm_before_fc": False, "fc_norm": None})
    assert load_head(tmp_path, base).config.feature_layers == (2, 4, 6)


@pytest.mark.parametrize(("member", "value"), OTHER_CHOICES)
def test_a_choice_that_is_not_followed_is_refused_wherever_it_is_made(
    member: str, value: object, base: TargetConfig, tmp_path: Path
) -> None:
    write_safeailab(tmp_path / "nested", head_config(base), eagle_config=NVIDIAS | {member: value})
    write_safeailab(tmp_path / "flat", head_config(base), **{member: value})
    write_speculators(tmp_path / "theirs", head_config(base), **{member: value})
    for name in ("nested", "flat", "theirs"):
        with pytest.raises(HeadConfigInvalid, match=rf"{member} is {value!r}"):
            load_head(tmp_path / name, base)


@pytest.mark.parametrize(
    ("member", "value"), [("norm_before_fc", True), ("norm_output", True), ("fc_norm", True), ("magic", 3), ("x", None)]
)
def test_a_member_of_eagle_config_that_says_otherwise_or_is_unknown_is_refused(
    member: str, value: object, base: TargetConfig, tmp_path: Path
) -> None:
    write_safeailab(tmp_path, head_config(base), eagle_config=NVIDIAS | {member: value})
    with pytest.raises(HeadConfigInvalid, match=rf"eagle_config\.{member} is {value!r}"):
        load_head(tmp_path, base)


@pytest.mark.parametrize("value", [[], "x", 3])
def test_an_eagle_config_that_is_no_object_is_refused(value: object, base: TargetConfig, tmp_path: Path) -> None:
    write_safeailab(tmp_path, head_config(base), eagle_config=value)
    with pytest.raises(HeadConfigInvalid, match="eagle_config"):
        load_head(tmp_path, base)


def test_a_rotation_that_is_not_known_is_refused_when_the_head_is_read(base: TargetConfig, tmp_path: Path) -> None:
    rope = {"rope_type": "mrope", "type": "mrope", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    write_safeailab(tmp_path / "flat", head_config(base), rope_scaling=rope)
    write_kolm(tmp_path / "kolm", head_config(base))
    edit_json(tmp_path / "kolm" / "config.json", rope_parameters=rope)
    for name in ("flat", "kolm"):
        with pytest.raises(HeadConfigInvalid, match=r"rope_parameters.*mrope"):
            load_head(tmp_path / name, base)


@pytest.mark.parametrize("kind", ["mtp", "eagle", "peagle", "independent"])
def test_heads_of_other_kinds_of_speculators_are_named(kind: str, base: TargetConfig, tmp_path: Path) -> None:
    write_speculators(tmp_path, head_config(base), speculators_model_type=kind)
    for load in (load_head, load_draft_head):
        with pytest.raises(HeadConfigInvalid, match=f"speculators_model_type.*'{kind}'"):
            load(tmp_path, base)


def test_parts_without_an_index_and_two_sets_of_weights_are_refused(base: TargetConfig, tmp_path: Path) -> None:
    write_kolm(tmp_path, head_config(base))
    whole, shard = tmp_path / "model.safetensors", tmp_path / "model-00001-of-00002.safetensors"
    shard.write_bytes(whole.read_bytes())
    with pytest.raises(HeadWeightsInvalid, match=shard.name):
        load_head(tmp_path, base)
    whole.unlink()
    with pytest.raises(HeadNotFound):
        load_head(tmp_path, base)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"a": 1}'])
def test_a_config_that_is_not_one_is_refused(text: bytes, base: TargetConfig, tmp_path: Path) -> None:
    write_kolm(tmp_path, head_config(base))
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(HeadConfigInvalid):
        load_head(tmp_path, base)


WEIGHTS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "missing": (lambda t: (t.pop("fc.weight"), t.pop("norm.weight")), r"\['fc.weight', 'norm.weight'\]"),
    "unknown": (lambda t: t.update(magic=torch.zeros(1)), "magic"),
    "shape": (lambda t: t.update({"fc.weight": torch.zeros(3, 4)}), "fc.weight has shape"),
    "dtype": (lambda t: t.update({"fc.weight": t["fc.weight"].double()}), "fc.weight has dtype"),
    "a map of floats": (lambda t: t.update(d2t=t["d2t"].float()), "d2t has dtype"),
    "a map beyond the vocabulary": (lambda t: t["d2t"][-1].add_(10_000), "d2t maps"),
    "a map below it": (lambda t: t["d2t"][0].sub_(10_000), "d2t maps"),
    "two for one": (lambda t: t["d2t"][1].copy_(t["d2t"][0] - 1), "twice"),
    "maps that disagree": (lambda t: t["t2d"].logical_not_(), "different tokens"),
    "no map": (lambda t: t.pop("d2t"), "d2t"),
    "not a number": (lambda t: t["fc.weight"][3, 5].fill_(math.nan), r"fc\.weight holds"),
    "infinite": (lambda t: t["norm.weight"][-1].fill_(math.inf), r"norm\.weight holds"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_wrong_weights_are_refused_by_name(case: str, base: TargetConfig, tmp_path: Path) -> None:
    change, names = WEIGHTS[case]
    write_kolm(tmp_path, head_config(base))
    edit_tensors(tmp_path / "model.safetensors", change)
    with pytest.raises(HeadWeightsInvalid, match=names):
        load_head(tmp_path, base)


def test_a_truncated_file_is_refused(base: TargetConfig, tmp_path: Path) -> None:
    write_kolm(tmp_path, head_config(base))
    whole = (tmp_path / "model.safetensors").read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        (tmp_path / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(HeadWeightsInvalid):
            load_head(tmp_path, base)


@pytest.mark.parametrize(
    "choices",
    [{"vocab_size": 500}, {"target_hidden_size": 48}, {"hidden_size": 48}, {"feature_layers": (1, 2, 9)}],
    ids=str,
)
def test_a_head_for_another_base_is_refused(choices: dict[str, Any], base: TargetConfig, tmp_path: Path) -> None:
    write_kolm(tmp_path, head_config(base, **choices))
    with pytest.raises(HeadForAnotherBase, match=next(iter(choices))):
        load_head(tmp_path, base)


_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Published:
    base: str
    write: Callable[..., dict[str, torch.Tensor]]
    layers: tuple[int, ...]  # the streams that are read
    members: dict[str, Any] = field(default_factory=dict)  # of config.json
    choices: dict[str, Any] = field(default_factory=dict)  # of the head


HEADS = {
    "RedHatAI, Qwen3-8B": Published(
        "qwen3", write_speculators, (1, 2, 3), {_IDS: [1, 2, 3]}, {"norm_before_residual": True},
    ),
    "RedHatAI, gpt-oss-20b": Published(
        "gpt_oss", write_speculators, (0, 1, 3), {_IDS: [0, 1, 3]},
        {"norm_before_fc": True, "norm_before_residual": True, "own_embeddings": True},
    ),
    "nvidia, gpt-oss-120b, the last stream among those read": Published(
        "gpt_oss", write_safeailab, (1, 2, 3),
        {"eagle_config": {_IDS: [1, 2, 3], "use_aux_hidden_state": True}}, {"norm_before_fc": True},
    ),
    "nvidia, Llama-4-Maverick": Published(
        "llama4", write_safeailab, (2, 3, 5),
        {"eagle_config": {_IDS: [1, 2, 4], "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True}},
    ),
    "the same, converted by speculators": Published(
        "llama4", write_speculators, (1, 3, 4), {_IDS: [1, 3, 4], "inference_type": "text"},
    ),
    "RedHatAI, Gemma-4-31B": Published(
        "gemma4", write_speculators, (1, 2, 3), {_IDS: [1, 2, 3]},
        {"own_embeddings": True, "norm_before_residual": True},
    ),
    "of Gemma's own activation": Published(
        "gemma4", write_safeailab, (1, 2, 3),
        {_IDS: [0, 1, 2], "hidden_act": "gelu_pytorch_tanh", "architectures": ["LlamaEagle3DraftModel"]},
        {"hidden_act": "gelu_pytorch_tanh"},
    ),
}  # fmt: skip
BASES: dict[str, dict[str, Any]] = FAMILIES | {"qwen3": {"architecture": "qwen3", "layers": 3, "head_dim": 24}}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CpuTarget]:
    def target(name: str) -> CpuTarget:
        return target_of(draw_vectors(make_tiny_model(tmp_path_factory.mktemp("base"), **BASES[name])))

    return {name: target(name) for name in {head.base for head in HEADS.values()}}


@pytest.mark.parametrize("name", HEADS)
def test_a_published_head_drafts_for_its_base(name: str, targets: dict[str, CpuTarget], tmp_path: Path) -> None:
    published = HEADS[name]
    target = targets[published.base]
    config = head_config(target.config, feature_layers=published.layers, **published.choices)
    published.write(tmp_path, config, **published.members)
    head = load_head(tmp_path, target.config)
    assert head.config == config
    drafter = Eagle3Drafter(head, target, copies=False)
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    drafted = EngineRequest("drafted", tuple(TOKENS[:70]), sampling, method="eagle3", k=3)
    plain = EngineRequest("plain", drafted.prompt, sampling)
    found = run(target, [drafted], drafters={"eagle3": drafter}).outcomes[drafted.key]
    assert found.token_ids == run(target, [plain]).outcomes[plain.key].token_ids
    assert found.metrics.num_draft_tokens > 0
