"""A transformers model directory with random weights, small enough to make in every test session."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from services.generation.target.arrays import Float32
from services.generation.target.config.config import read_config
from services.generation.target.cpu import CpuTarget
from services.generation.target.target import Target
from services.generation.target.weights import open_weights
from tests.fakes.rows import tree_rows

MODEL_TYPES = {
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "llama4": "llama4_text", "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text", "granite_hybrid": "granitemoehybrid", "granite_moe": "granitemoe",
}  # fmt: skip
"""The names of architectures in transformers, if they differ from the names here."""
PAD, END, USER, ASSISTANT = SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>")

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role') }}{% endif %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_TEXT = """The ledger keeps one receipt for every request that was served, and every receipt is signed.
A drafter guesses; the target decides. What the target would not have said is never said by anybody.
def compare(first, second):
    return [left == right for left, right in zip(first, second)]
"""


def make_tiny_model(
    directory: Path,
    *,
    architecture: str = "llama",
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 384,
    context: int = 512,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Write config.json, model.safetensors, a byte-level tokenizer and a chat template; returns `directory`.

    `vocab` is at least 260 (bytes and special tokens). `config` overrides members of the transformers configuration.
    The same arguments give the same weights. They are drawn wide (0.1) so that greedy output is not one repeated token.
    """
    tokenizer = tiny_tokenizer(vocab)
    members = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": context,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids(END),
        "pad_token_id": tokenizer.convert_tokens_to_ids(PAD),
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kind = MODEL_TYPES.get(architecture, architecture)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(members | config)))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def tiny_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fast.train_from_iterator(
        [_TEXT],
        trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
        ),
    )
    fast.add_tokens([f"<extra {number}>" for number in range(vocab - fast.get_vocab_size())])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=END, pad_token=PAD)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


TOKENS = [(7 * i * i + 3 * i) % 384 for i in range(90)]


def target_of(path: Path, **options: Any) -> CpuTarget:
    return CpuTarget(read_config(path), open_weights(path), 24, "", "", **options)


def logits_of(target: Target, widths: Sequence[int] = (), tokens: Sequence[int] = TOKENS, adapter: int = -1) -> Float32:
    """Logits of the tokens, so many in each pass, or all in one."""
    logits, start = [], 0
    with target.blocks.lent(len(tokens)) as table:
        for width in widths or [len(tokens)]:
            rows = tree_rows(table, start, tokens[start : start + width], adapter=adapter)
            logits.append(target.forward(rows).logits.copy())
            start += width
    return np.concatenate(logits)
