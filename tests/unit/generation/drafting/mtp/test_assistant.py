"""Gemma 4's assistant computes what transformers' does (tests/vectors/make_assistant), over the target's cache."""

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from services.client.head_folder import manifest_of
from services.generation.drafting.heads import (
    HeadConfigInvalid,
    HeadError,
    HeadForAnotherBase,
    HeadNotFound,
    HeadWeightsInvalid,
)
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.methods import load_head
from services.generation.drafting.mtp.assistant import Assistant, read_assistant_beside, write_assistant
from services.generation.drafting.mtp.assistant_pass import AssistantPass
from services.generation.drafting.mtp.mtp_drafter import AssistantDrafter
from services.generation.engine.core import EngineSettings
from services.generation.engine.drafter import Drafter, DraftRequest
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.config.config import read_config
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.errors import UnsupportedArchitecture
from services.generation.target.rows import Rows
from services.generation.target.weights import has_own_head
from tests.examples import examples
from tests.fakes.assistants import BASES, assistant, loaded, make_assistant_of, sidecar_of_assistant
from tests.fakes.converted_gguf import convert
from tests.fakes.drafters import LyingDrafter
from tests.fakes.engine_runs import run
from tests.fakes.heads import InformedDrafter
from tests.fakes.rows import chunk_rows
from tests.fakes.tiny_model import make_tiny_model, target_of
from tests.unit.generation.engine.test_identity import alone, check_unchanged, requests_of, short_battery
from tests.vectors.make_assistant import ANCHORS, FOLDER, STEPS


def row(table: list[int], known: int, token: int) -> Rows:
    """A row of a draft behind `known` tokens."""
    rows = Rows.empty(1, [table], 0)
    rows.tokens[0], rows.positions[0], rows.lengths[0], rows.contiguous[0] = token, known, known, known
    return rows


def computed(target: CpuTarget, tokens: list[int]) -> tuple[list[int], Any]:
    """The table of tokens that the target computed in two passes, and the last one's stream after the last layer."""
    table: list[int] = []
    target.blocks.extend(table, len(tokens))
    for first, end in ((0, 2), (2, len(tokens))):
        out = target.forward(chunk_rows(table, first, tokens[first:end]), (target.config.layers,))
    return table, out.features[-1:]


def beside(name: str, folder: Path, target: CpuTarget, **metadata: Any) -> Assistant | None:
    """The assistant of a base, in a sidecar."""
    sidecar_of_assistant(FOLDER / name / "assistant", folder / "mtp-tiny.gguf", **metadata)
    return read_assistant_beside(folder / "tiny.gguf", target.config)


@pytest.mark.parametrize("in_sidecar", [False, True])
@pytest.mark.parametrize("anchor", ANCHORS)
@pytest.mark.parametrize("name", BASES)
def test_a_chain_drafts_what_transformers_drafts(name: str, anchor: int, in_sidecar: bool, tmp_path: Path) -> None:
    expected, target = load_file(FOLDER / name / "expected.safetensors"), target_of(FOLDER / name)
    tokens = expected["tokens"].tolist()
    table, features = computed(target, tokens[: anchor + 1])
    head = beside(name, tmp_path, target) if in_sidecar else loaded(FOLDER / name / "assistant", target)
    assert head is not None
    computing = AssistantPass(head, target)
    out = computing.read(row(table, anchor + 1, tokens[anchor + 1]), features)
    for step in range(STEPS):
        state, draft = expected[f"{anchor}.states"][step], int(expected[f"{anchor}.drafts"][step])
        assert np.abs(out.states[0] - state).max() < 1e-4
        assert out.logits[0].argmax() == draft
        out = computing.step(row(table, anchor + 1, draft), out.states.copy())


METADATA: dict[str, tuple[dict[str, Any], type[HeadError]]] = {
    "of a wider base": ({"embedding_length_out": 64}, HeadForAnotherBase),
    "without the base's width": ({"embedding_length_out": "32"}, HeadConfigInvalid),
    "with a layer more": ({"block_count": 3}, HeadConfigInvalid),
    "with a window in its last layer": ({"attention.sliding_window_pattern": [True, True]}, HeadConfigInvalid),
    "with other key heads": ({"attention.head_count_kv": [1, 1]}, HeadForAnotherBase),
    "with a wider MLP": ({"feed_forward_length": 48}, HeadWeightsInvalid),
}


@pytest.mark.parametrize("fault", METADATA)
def test_a_sidecar_that_does_not_fit_is_refused_by_its_kind(fault: str, tmp_path: Path) -> None:
    members, error = METADATA[fault]
    with pytest.raises(error):
        beside("own_keys", tmp_path, target_of(FOLDER / "own_keys"), **members)


def test_a_sidecar_with_an_assistant_is_for_gemma_4_alone_and_is_no_base(tmp_path: Path) -> None:
    sidecar = sidecar_of_assistant(FOLDER / "own_keys" / "assistant", tmp_path / "mtp-tiny.gguf")
    assert has_own_head(convert(FOLDER / "own_keys", tmp_path / "tiny.gguf"))
    with pytest.raises(HeadForAnotherBase):
        read_assistant_beside(tmp_path / "tiny.gguf", read_config(make_tiny_model(tmp_path / "llama")))
    with pytest.raises(UnsupportedArchitecture):
        load_target(sidecar, cache_tokens=64)
    assert read_assistant_beside(tmp_path / "other.gguf", read_config(FOLDER / "own_keys")) is None


@given(data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_damaged_bytes_of_a_sidecar_raise_a_head_s_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    sidecar = sidecar_of_assistant(FOLDER / "own_keys" / "assistant", folder / "mtp-tiny.gguf")
    damaged = bytearray(sidecar.read_bytes())
    for at in data.draw(st.lists(st.integers(0, 3_000) | st.integers(0, len(damaged) - 1), min_size=1, max_size=5)):
        damaged[at] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 127, 128, 255]))
    sidecar.write_bytes(damaged)
    with suppress(HeadError):
        read_assistant_beside(folder / "tiny.gguf", read_config(FOLDER / "own_keys"))


@pytest.mark.parametrize("name", BASES)
def test_it_is_written_in_kolm_s_layout(name: str, tmp_path: Path) -> None:
    base, source = read_config(FOLDER / name), FOLDER / name / "assistant"
    write_assistant(tmp_path / "head", source, base)
    manifest = manifest_of(tmp_path / "head", "cidv1:sha256:" + "0" * 64)
    assert (manifest.kind, manifest.feature_layers, manifest.draft_vocab_size) == ("mtp", (base.layers,), 320)
    written, published = load_head(tmp_path / "head", base), load_head(source, base)
    assert isinstance(written, Assistant)
    assert isinstance(published, Assistant)
    assert (written.origin, written.own) == ("kolm", published.own)
    assert {n: v.tobytes() for n, v in written.tensors.items()} == {
        n: v.tobytes() for n, v in published.tensors.items()
    }


class Recording(AssistantDrafter):
    """The tokens of each sequence that it drafted for, and its first choice."""

    def propose(self, asks: Sequence[DraftRequest]) -> list[TokenTree]:
        trees = super().propose(asks)
        self.drafted = getattr(self, "drafted", {})
        for ask, tree in zip(asks, trees, strict=True):
            if len(tree) > 1:
                self.drafted[tuple(ask.tokens)] = tree.tokens[1]
        return trees

    def first_choice(self, tokens: Sequence[int], target: CpuTarget) -> int:
        """The likeliest token of a draft behind all but the last of `tokens`, which the target computes now."""
        table, features = computed(target, list(tokens[:-1]))
        out = self._pass.read(row(table, len(tokens) - 1, tokens[-1]), features)
        target.blocks.release(table)
        return int(out.logits[0].argmax())


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, and its assistant in the folder `assistant`."""
    folder = make_tiny_model(tmp_path_factory.mktemp("gemma") / "base", **BASES["own_keys"])
    make_assistant_of(folder, folder / "assistant")
    return folder


@pytest.fixture(scope="module")
def target(gemma: Path) -> CpuTarget:
    return load_target(gemma, cache_tokens=40 * 64)


@pytest.fixture(scope="module")
def cramped_target(gemma: Path) -> CpuTarget:
    """The same with a cache of four blocks: sequences preempt each other."""
    return load_target(gemma, cache_tokens=4 * 64)


@given(seed=st.integers(0, 2**32))
@short_battery
def test_no_schedule_changes_a_token(gemma: Path, target: CpuTarget, cramped_target: CpuTarget, seed: int) -> None:
    rng = random.Random(seed)
    requests = [replace(each, method="mtp", parameters={}) for each in requests_of(rng, rng.randrange(1, 6))]
    expected = {request.key: alone(target, request) for request in requests}
    truth = {key: tokens for key, (tokens, *_) in expected.items()}
    computing = rng.choice((target, cramped_target))
    drafters: dict[str, Drafter] = {
        "mtp": InformedDrafter(assistant(gemma / "assistant", computing, copies=seed % 2 > 0), seed, truth),
        "lookahead": LookaheadDrafter(),
        "lying": LyingDrafter(seed, 384, truth),
    }
    check_unchanged(computing, requests, expected, drafters, rng)


def test_drafts_do_not_depend_on_chunks_neighbours_prefixes_and_preemptions(
    gemma: Path, cramped_target: CpuTarget
) -> None:
    drafter = Recording(loaded(gemma / "assistant", cramped_target), cramped_target)
    sampling = SamplingParams(max_tokens=90, ignore_eos=True)
    prompts = [(1, *range(66)), (1, *range(65)), tuple(range(60)), tuple(range(9, 60))]  # two begin with the same block
    requests = [
        EngineRequest(f"r{n}", prompt, sampling, method="mtp", parameters={"tree_width": 1})
        for n, prompt in enumerate(prompts)
    ]
    settings = EngineSettings(prefill_rows=7)
    collected = run(cramped_target, requests, drafters={"mtp": drafter}, settings=settings)
    assert collected.preemptions > 0
    assert len(drafter.drafted) > 10
    for tokens, drafted in drafter.drafted.items():
        assert drafter.first_choice(tokens, cramped_target) == drafted


def text(**members: Any) -> Callable[[Path], None]:
    """Members of text_config, changed."""

    def change(folder: Path) -> None:
        document = json.loads((folder / "config.json").read_text())
        document["text_config"] |= members
        (folder / "config.json").write_text(json.dumps(document))

    return change


def top(**members: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        document = json.loads((folder / "config.json").read_text()) | members
        (folder / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v is not None}))

    return change


def tensors(changed: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        found = load_file(folder / "model.safetensors")
        changed(found)
        save_file(found, folder / "model.safetensors")

    return change


def truncate(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])


REFUSED: dict[str, tuple[Callable[[Path], None], type[HeadError]]] = {
    "no layers": (top(text_config=None), HeadConfigInvalid),
    "layers of another type": (top(text_config=[1]), HeadConfigInvalid),
    "no base": (top(backbone_hidden_size=None), HeadConfigInvalid),
    "a base of no size": (top(backbone_hidden_size=-1), HeadConfigInvalid),
    "another base": (top(backbone_hidden_size=64), HeadForAnotherBase),
    "another vocabulary": (text(vocab_size=384), HeadForAnotherBase),
    "other heads": (text(head_dim=64), HeadForAnotherBase),
    "no heads": (text(num_attention_heads=0), HeadConfigInvalid),
    "too many layers": (text(num_hidden_layers=10**9), HeadConfigInvalid),
    "a rotation of no kind": (text(rope_parameters={"full_attention": {"rope_type": "x"}}), HeadConfigInvalid),
    "experts": (text(enable_moe_block=True), HeadConfigInvalid),
    "inputs of layers": (text(hidden_size_per_layer_input=8), HeadConfigInvalid),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), HeadNotFound),
    "cut weights": (truncate, HeadWeightsInvalid),
    "a missing tensor": (tensors(lambda found: found.pop("pre_projection.weight")), HeadWeightsInvalid),
    "an unknown tensor": (tensors(lambda found: found.update(x=found["post_projection.weight"])), HeadWeightsInvalid),
    "another shape": (
        tensors(lambda found: found.update({"post_projection.weight": found["pre_projection.weight"]})),
        HeadWeightsInvalid,
    ),
    "a NaN": (tensors(lambda found: found["pre_projection.weight"].fill(np.nan)), HeadWeightsInvalid),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_faulty_assistant_is_refused(fault: str, tmp_path: Path) -> None:
    folder = make_assistant_of(FOLDER / "own_keys", tmp_path / "head")
    change, error = REFUSED[fault]
    change(folder)
    with pytest.raises(error):
        load_head(folder, read_config(FOLDER / "own_keys"))


def test_a_base_of_another_family_is_refused(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "llama", hidden=32, vocab=320)
    with pytest.raises(HeadForAnotherBase):
        load_head(FOLDER / "own_keys" / "assistant", read_config(base))
