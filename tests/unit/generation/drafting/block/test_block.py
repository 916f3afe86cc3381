"""Block drafters: layouts of their checkpoints, and a pass that proposes a block."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import numpy as arrays
from safetensors.torch import load_file, save_file

from services.generation.drafting.block.block_checkpoint import BlockConfig, BlockHead, load_block_head
from services.generation.drafting.block.block_pass import BlockPass
from services.generation.drafting.heads import (
    HeadConfigInvalid,
    HeadError,
    HeadForAnotherBase,
    HeadNotFound,
    HeadWeightsInvalid,
)
from services.generation.drafting.methods import load_head
from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.config import TargetConfig, read_config
from services.generation.target.rows import RowsBuilder
from tests.fakes.heads import block_config, block_tensors, head_config, published_block, write_kolm, write_kolm_block
from tests.fakes.rows import chunk_rows
from tests.fakes.tiny_model import make_tiny_model
from tests.vectors.make_block_heads import ANCHOR, BLOCK, FOLDER, HIDDEN, VOCABULARY, make


def write(folder: Path, config: BlockConfig, **changes: Any) -> Path:
    """A head in kolm's layout; `changes` are members of its config.json, `...` takes one out."""
    write_kolm_block(folder, config)
    return changed(folder, **changes)


def changed(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not ...}))
    return folder


def flat(config: BlockConfig, **members: Any) -> dict[str, Any]:
    """A flat Qwen3 configuration, as DeepSpec and z-lab write one."""
    document = {
        "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "num_hidden_layers": config.layers,
        "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size, "dtype": "bfloat16",
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_epsilon, "vocab_size": config.vocab_size, "rope_theta": 10000.0,
        "max_position_embeddings": config.trained_length, "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * config.layers, "num_target_layers": 8, "num_anchors": 512,
    }  # fmt: skip
    return document | members


def published(folder: Path, config: BlockConfig, document: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(document))
    save_file(block_tensors(config), folder / "model.safetensors")
    return folder


def same(head: BlockHead, config: BlockConfig) -> None:
    assert head.config == config
    for name, tensor in block_tensors(config).items():
        if name != "d2t":
            np.testing.assert_array_equal(head.tensors[name], tensor.numpy())


def test_kolm_s_layout_comes_back_as_it_was_written(base: TargetConfig, tmp_path: Path) -> None:
    config = block_config(base, windows=(0, 32), attention_bias=True)
    head = load_block_head(write(tmp_path / "head", config), base)
    same(head, config)
    assert len(set(head.target_ids.tolist())) == config.draft_vocab_size


def test_deepspec_s_layout_names_outputs_of_layers_and_drafts_from_the_first_row(
    base: TargetConfig, tmp_path: Path
) -> None:
    config = block_config(
        base, draft_vocab_size=base.vocab_size, own_embeddings=True, feature_layers=(0, 2, 8), markov_rank=16
    )
    document = flat(
        config, block_size=5, mask_token_id=3, target_layer_ids=[-1, 1, 7], markov_rank=16, markov_head_type="vanilla",
        enable_confidence_head=True, confidence_head_with_markov=True,
    )  # fmt: skip
    same(load_block_head(published(tmp_path / "head", config, document), base), config)


def test_z_lab_s_layout_nests_its_choices_and_drafts_from_masks_alone(base: TargetConfig, tmp_path: Path) -> None:
    config = block_config(
        base, draft_vocab_size=base.vocab_size, own_output=False, from_first=False, feature_layers=(2, 6),
        markov_rank=0, confidence=False, confidence_reads_token=False,
    )  # fmt: skip
    nested = {"block_size": 5, "mask_token_id": 3, "target_layer_ids": [1, 5]}
    document = flat(config, architectures=["DFlashDraftModel"], dflash_config=nested)
    head = load_block_head(published(tmp_path / "head", config, document), base)
    same(head, config)
    assert (head.config.drafts, head.origin) == (4, "deepspec")


DFLASH2 = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 6}


def dflash2(folder: Path, base: TargetConfig, **members: int) -> tuple[Path, BlockConfig]:
    """A DFlash2 head as z-lab publishes it; `members` replace those of its dflash_config."""
    config = block_config(
        base, draft_vocab_size=base.vocab_size, own_output=False, from_first=False, feature_layers=(2, 6),
        markov_rank=0, confidence=False, confidence_reads_token=False, taps=2, tap_group=16, selector_rank=8,
        selector_top=6,
    )  # fmt: skip
    nested = {"block_size": 5, "mask_token_id": 3, "target_layer_ids": [1, 5]} | DFLASH2 | members
    document = flat(config, architectures=["DFlash2DraftModel"], dflash_config=nested)
    return published(folder, config, document), config


def test_a_dflash2_head_loads_as_z_lab_publishes_it(base: TargetConfig, tmp_path: Path) -> None:
    folder, config = dflash2(tmp_path / "head", base)
    same(load_block_head(folder, base), config)


@pytest.mark.parametrize(
    "members",
    [{"conv_kernel_size": 6}, {"conv_group_size": 7}, {"conv_group_size": 0}, {"selector_top_k": 0},
     {"selector_rank": -1}, {"selector_top_k": 10_000}],
    ids=str,
)  # fmt: skip
def test_wrong_sizes_of_dflash2_are_refused_by_name(
    members: dict[str, int], base: TargetConfig, tmp_path: Path
) -> None:
    folder, _ = dflash2(tmp_path / "head", base, **members)
    with pytest.raises(HeadConfigInvalid, match=next(iter(members))):
        load_block_head(folder, base)
    with pytest.raises(HeadConfigInvalid, match="draft_vocab_size"):
        block_config(base, selector_rank=8, selector_top=6).check()


def test_a_head_s_kind_is_told_from_its_configuration(base: TargetConfig, tmp_path: Path) -> None:
    write(tmp_path / "block", block_config(base))
    write_kolm(tmp_path / "eagle3", head_config(base))
    assert [load_head(tmp_path / kind, base).kind for kind in ("block", "eagle3")] == ["block", "eagle3"]
    for members in ({"layout": "kolm.mtp.v1"}, {"layout": ..., "architectures": ["MtpModel"]}):
        with pytest.raises(HeadConfigInvalid):
            load_head(changed(tmp_path / "block", **members), base)


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"block_size": 0}, "block_size"),
        ({"block_size": 10_000}, "block_size"),
        ({"block_size": True}, "block_size"),
        ({"sample_from_anchor": False, "block_size": 1}, "block_size"),
        ({"mask_token_id": -1}, "mask_token_id"),
        ({"mask_token_id": 384}, "mask_token_id"),
        ({"markov_rank": -1}, "markov_rank"),
        ({"markov_rank": 0}, "confidence_head_with_markov"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"num_attention_heads": 3}, "attention heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"windows": [0]}, "windows"),
        ({"feature_layers": []}, "feature_layers"),
        ({"draft_vocab_size": 385}, "draft_vocab_size"),
        ({"rope_parameters": {"rope_type": "unheard of"}}, "rope_parameters"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"own_output": ...}, "own_output"),
        ({"own_output": False}, "lm_head"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_member_is_refused_by_its_name(
    members: dict[str, Any], named: str, base: TargetConfig, tmp_path: Path
) -> None:
    folder = write(tmp_path / "head", block_config(base), **members)
    with pytest.raises(HeadConfigInvalid) as refused:
        load_head(folder, base)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"mask_token_id": ...}, "mask_token_id"),
        ({"mask_token_id": "x"}, "mask_token_id"),
        ({"block_size": ...}, "block_size"),
        ({"target_layer_ids": [0.5]}, "target_layer_ids"),
        ({"model_type": "llama"}, "model_type"),
        ({"num_hidden_layers": 2 * 10**9, "layer_types": ...}, "num_hidden_layers"),
        ({"markov_head_type": "rnn"}, "markov_head_type"),
        ({"use_sliding_window": True, "sliding_window": "x"}, "sliding_window"),
    ],
)
def test_a_wrong_member_of_a_published_layout_is_refused_by_its_name(
    members: dict[str, Any], named: str, base: TargetConfig, tmp_path: Path
) -> None:
    config = block_config(base)
    document = flat(config, block_size=5, mask_token_id=3, target_layer_ids=[1, 7], draft_vocab_size=192)
    folder = changed(published(tmp_path / "head", config, document), **members)
    with pytest.raises(HeadConfigInvalid) as refused:
        load_head(folder, base)
    assert named in str(refused.value)


OTHER_CHOICES: list[tuple[str, object]] = [
    ("causal", True), ("attention_mode", "mla"), ("projector_type", "domino"), ("output_multiplier", 0.2),
    ("final_logit_softcapping", 20.0), ("is_causal", True),
]  # fmt: skip


@pytest.mark.parametrize(("member", "value"), OTHER_CHOICES)
def test_a_choice_that_is_not_followed_is_refused_wherever_it_is_made(
    member: str, value: object, base: TargetConfig, tmp_path: Path
) -> None:
    config = block_config(base)
    nested = {"block_size": 5, "mask_token_id": 3, "target_layer_ids": [1, 7], "num_target_layers": 8}
    document = flat(config, architectures=["DFlashDraftModel"])
    folders = (
        published(tmp_path / "nested", config, document | {"dflash_config": nested | {member: value}}),
        published(tmp_path / "flat", config, document | nested | {member: value}),
        changed(published_block(tmp_path / "theirs", config, "dspark"), **{member: value}),
    )
    for folder in folders:
        with pytest.raises(HeadConfigInvalid, match=f"{member} is {value!r}"):
            load_head(folder, base)


@pytest.mark.parametrize("members", [{"tree_width": 8}, {"magic": None}], ids=str)
def test_an_unknown_member_of_dflash_config_is_refused(
    members: dict[str, Any], base: TargetConfig, tmp_path: Path
) -> None:
    config = block_config(base)
    nested = {"block_size": 5, "mask_token_id": 3, "target_layer_ids": [1, 7]} | members
    document = flat(config, architectures=["DFlashDraftModel"], dflash_config=nested)
    with pytest.raises(HeadConfigInvalid, match=f"dflash_config.{next(iter(members))} is"):
        load_head(published(tmp_path / "head", config, document), base)
    with pytest.raises(HeadConfigInvalid, match="dflash_config is"):
        load_head(changed(tmp_path / "head", dflash_config=[1]), base)


@pytest.mark.parametrize("members", [{"vocab_size": 400}, {"target_hidden_size": 32}, {"feature_layers": [0, 9]}])
def test_a_head_of_another_base_is_refused(members: dict[str, Any], base: TargetConfig, tmp_path: Path) -> None:
    with pytest.raises(HeadForAnotherBase, match=next(iter(members))):
        load_head(write(tmp_path / "head", block_config(base), **members), base)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("fc.weight", lambda tensor: tensor.fill_(float("nan"))),
        ("markov_head.markov_w1.weight", lambda tensor: tensor / 0),
        ("layers.1.self_attn.k_proj.weight", lambda tensor: tensor.T),
        ("norm.weight", lambda tensor: tensor.to(torch.int32)),
        ("confidence_head.proj.bias", lambda _: None),
        ("d2t", lambda tensor: tensor + 1000),
        ("t2d", lambda tensor: ~tensor),
        ("layers.2.mlp.up_proj.weight", lambda _: torch.zeros(3)),
    ],
)
def test_a_wrong_tensor_is_refused_by_its_name(name: str, change: Any, base: TargetConfig, tmp_path: Path) -> None:
    folder = write(tmp_path / "head", block_config(base))
    tensors = load_file(folder / "model.safetensors")
    found = change(tensors.pop(name, torch.zeros(1)).clone())
    more = {} if found is None else {name: found.contiguous()}
    save_file({**tensors, **more}, folder / "model.safetensors")
    with pytest.raises(HeadWeightsInvalid) as refused:
        load_head(folder, base)
    assert name in str(refused.value)


def test_a_truncated_or_missing_file_is_refused(base: TargetConfig, tmp_path: Path) -> None:
    folder = write(tmp_path / "head", block_config(base))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-9])
    with pytest.raises(HeadWeightsInvalid):
        load_head(folder, base)
    (folder / "model.safetensors").unlink()
    with pytest.raises(HeadNotFound):
        load_head(folder, base)
    (folder / "config.json").write_text("[1")
    with pytest.raises(HeadError):
        load_head(folder, base)


@dataclass
class Base:
    """As much of a target as a block head reads."""

    embeddings: Float32
    output: Float32
    threads: int = 2

    def embed(self, tokens: Int64) -> Float32:
        return self.embeddings[tokens]

    def unembed(self, states: Float32) -> Float32:
        return states @ self.output.T


@pytest.fixture(scope="module")
def narrow_base(tmp_path_factory: pytest.TempPathFactory) -> TargetConfig:
    config = read_config(make_tiny_model(tmp_path_factory.mktemp("base")))
    return replace(config, vocab_size=VOCABULARY, hidden_size=HIDDEN, layers=8)


@dataclass
class Drafted:
    states: Float32
    logits: Float32
    tokens: list[int]
    confidence: list[float]


def drafted(head: BlockHead, known: dict[str, Any], *, chunk: int, refused: int = 0, beside: int = 0) -> Drafted:
    """A block at the anchor, its context stored in chunks, after `refused` other blocks at earlier anchors; `beside`
    further sequences draft in the same pass.
    """
    config = head.config
    computing = BlockPass(head, Base(known["embeddings"], known["output"]), 128, 128)  # type: ignore[arg-type]
    table, others = list[int](), [list[int]() for _ in range(beside)]
    for each in (table, *others):
        computing.blocks.extend(each, ANCHOR + BLOCK)
    for start in range(0, ANCHOR, chunk):
        features = known["features"][start : min(start + chunk, ANCHOR)]
        computing.store(chunk_rows(table, start, [0] * len(features), want_last=False), features)
        if refused:
            rows = RowsBuilder()
            rows.add_block(table, start + len(features), [9] * BLOCK, want_first=config.from_first)
            computing.draft(rows.build())
    rows = RowsBuilder()
    masks = [config.mask_token] * (BLOCK - 1)
    for each in others:
        rows.add_block(each, 3, [7, *masks], want_first=config.from_first)
    rows.add_block(table, ANCHOR, [int(known["tokens"][ANCHOR]), *masks], want_first=config.from_first)
    out = computing.draft(rows.build())
    states, logits = out.states[-config.drafts :], out.logits[-config.drafts :].copy()
    before, tokens, sure = int(known["tokens"][ANCHOR]), [], []
    for position in range(config.drafts):
        logits[position] = computing.add_previous(
            logits[position : position + 1], states[position : position + 1], [before]
        )[0]
        found = computing.confidence(states[position : position + 1], [before])
        sure += [] if found is None else found.tolist()
        before = int(head.target_ids[logits[position].argmax()])
        tokens.append(before)
    return Drafted(states, logits, tokens, sure)


def check(folder: Path, narrow_base: TargetConfig, **how: int) -> None:
    known = arrays.load_file(folder / "expected.safetensors")
    found = drafted(load_block_head(folder, narrow_base), known, **how)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.states, known["states"], atol=1e-4)
    np.testing.assert_allclose(found.logits, known["logits"], atol=1e-4)
    np.testing.assert_allclose(found.confidence, known["confidence"], atol=1e-4)
    assert found.tokens == known["drafts"].tolist()


@pytest.mark.parametrize("kind", ["dflash", "dspark", "dflash2"])
@pytest.mark.parametrize("how", [{"chunk": 90}, {"chunk": 1}, {"chunk": 9, "refused": 1}, {"chunk": 64, "beside": 60}])
def test_states_and_drafts_are_those_of_speculators(kind: str, how: dict[str, int], narrow_base: TargetConfig) -> None:
    check(FOLDER / kind, narrow_base, **how)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_the_installed_speculators_agrees(kind: str, narrow_base: TargetConfig, tmp_path: Path) -> None:
    pytest.importorskip("speculators.models.dspark")
    for seed in (2, 3):
        make(kind, tmp_path / f"{kind}-{seed}", seed)
        check(tmp_path / f"{kind}-{seed}", narrow_base, chunk=17)
