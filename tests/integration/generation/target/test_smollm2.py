"""The published model gives transformers' tokens from both of its files."""

from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.engines import KINDS, load_prompts
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.engine.core import EngineSettings
from services.generation.engine.events import Outcome
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.config.config import read_config
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.identity import base_manifest
from services.generation.target.weights import checked_weights, open_weights
from tests.fakes.engine_runs import run
from tests.fakes.rows import tree_rows
from tests.numerics.arithmetic import assert_same_bits
from tests.numerics.reference_model import ReferenceModel


def test_its_configuration_is_that_of_the_published_model(smollm2: Path) -> None:
    config = read_config(smollm2)
    sizes = (config.vocab_size, config.hidden_size, config.intermediate_size, config.layers, config.heads)
    assert (*sizes, config.kv_heads, config.head_dim) == (49152, 576, 1536, 30, 9, 3, 64)
    assert (config.architecture, config.context_length, config.norm_epsilon) == ("llama", 8192, 1e-5)
    assert config.tied_embeddings
    assert config.eos_token_ids == (0, 2)


@pytest.fixture(scope="module")
def published(smollm2: Path) -> Any:
    """The model as transformers has it. The file is in memory, for each of a million slices of a map is slow to make,
    and names of tensors are listed once and not for each layer.
    """
    with (
        patch("numpy.memmap", lambda path, dtype=np.uint8, **_: np.fromfile(path, dtype)),
        patch("gguf.get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        model = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32)
    model.eval()
    return model


def test_its_weights_are_what_transformers_makes_of_the_file(smollm2: Path, published: Any) -> None:
    loaded = published.state_dict()
    weights = checked_weights(smollm2, read_config(smollm2))
    assert weights.names() == loaded.keys() - {"lm_head.weight"}
    for name in weights.names():
        weights.tensor(name).check_finite()
        assert weights.tensor(name).values().tobytes() == loaded[name].numpy().tobytes(), name


def test_its_tokenizer_speaks_its_chat_template(smollm2: Path) -> None:
    tokenizer = Tokenizer(smollm2)
    ids = tokenizer.encode_chat([{"role": "user", "content": "What is 2048 + 1?"}])
    text = tokenizer.fast.decode(ids, skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nWhat is 2048 + 1?<|im_end|>\n<|im_start|>assistant\n")
    assert ids.count(1) == 3
    assert tokenizer.encode("2048") == [34, 32, 36, 40]


def test_its_identifiers_are_known(smollm2: Path) -> None:
    """Receipts contain the identifiers: a change that makes this fail is a change of format."""
    manifest = base_manifest(smollm2)
    assert manifest.cid == "cidv1:sha256:f42ab637b2baddbdd173b201fdc403b76ed0e1720238f521e4694b8b1244bcf6"
    assert manifest.tokenizer_cid == "cidv1:sha256:5ed7c59406e87da9a1ce48ba41dc8b1a7d9ae08f4629d01d1965e7a32e7844ac"


def test_its_logits_are_those_of_the_reference(smollm2: Path) -> None:
    config, weights, tokens = read_config(smollm2), open_weights(smollm2), [504, 2534]
    target = CpuTarget(config, weights, 1, "", "")
    table: list[int] = []
    target.blocks.extend(table, len(tokens))
    rows = tree_rows(table, 0, tokens)
    assert_same_bits(target.forward(rows).logits, ReferenceModel(config, weights).forward(tokens).logits)


NEW_TOKENS, TOGETHER = 16, 12
EXPLAINED = 1e-4  # of margin between the two best logits: there, the rounding of either program decides


def by_transformers(model: Any, asked: list[list[int]], pad: int) -> list[list[int]]:
    """Greedy continuations, the end of sequence ignored, in batches padded on the left."""
    model.generation_config.eos_token_id = None
    outputs = []
    for at in range(0, len(asked), TOGETHER):
        batch = asked[at : at + TOGETHER]
        longest = max(map(len, batch))
        ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch])
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=pad
            )
        outputs += out[:, longest:].tolist()
    return outputs


def by_kolm(base: Path, asked: list[list[int]], tokenizer: Tokenizer) -> list[Outcome]:
    """The same with speculation on, all in one batch."""
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    requests = [EngineRequest(str(n), tuple(prompt), sampling, method="lookahead") for n, prompt in enumerate(asked)]
    collected = run(
        load_target(base, arithmetic="float32"), requests, drafters={"lookahead": LookaheadDrafter()},
        settings=EngineSettings(max_sequences=TOGETHER), decoder=tokenizer.stream,
    )  # fmt: skip
    return [collected.outcomes[request.key] for request in requests]


@pytest.mark.slow
@pytest.mark.parametrize("each", [1, pytest.param(4, marks=pytest.mark.long)])
def test_greedy_tokens_are_those_of_transformers_on_questions_of_six_kinds(
    smollm2: Path, published: Any, each: int
) -> None:
    tokenizer = Tokenizer(smollm2)
    asked = [prompt for kind in KINDS for prompt in load_prompts(kind, tokenizer, each)]
    expected, found = by_transformers(published, asked, 0), by_kolm(smollm2, asked, tokenizer)
    misses = []
    for number, (tokens, outcome) in enumerate(zip(expected, found, strict=True)):
        assert len(tokens) == len(outcome.token_ids) == NEW_TOKENS
        at = next((i for i, pair in enumerate(zip(tokens, outcome.token_ids, strict=True)) if pair[0] != pair[1]), None)
        if at is not None:
            misses.append((number, at, outcome.margins[at]))
    assert len(asked) == 6 * each
    assert all(margin < EXPLAINED for *_, margin in misses), misses
    assert len(misses) <= 2, misses
