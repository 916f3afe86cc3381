"""The drill's model: two layers of random weights over a vocabulary of the drill's own words.

Everybody's drill has the same one, and nothing else serves it: its base identifier names a drill in every receipt.
"""

from __future__ import annotations

import json
from pathlib import Path

NAME = "kolm-drill"
FAULT = "fault"
"""A file in the model's folder: while it is there, the drill's engine computes wrong bits."""
MARK = {"kolm_drill": "random weights, for `kolm halts drill`"}
"""In the model's config.json. The drill's engine loads no model without it."""

PROMPT = "This is a drill. This is a drill. This is"
_SPECIAL = ("<|pad|>", "<|end|>")
_WORDS = "This is a drill. Nothing here is real: no receipt of this log, no halt, no resume is about a real model. "
_VOCABULARY, _HIDDEN, _INNER, _LAYERS, _HEADS, _KEY_HEADS = 384, 64, 128, 2, 4, 2
_SPREAD = 0.1  # of weights: wide enough that greedy output is not one token for ever
_NORMS = ("input_layernorm", "post_attention_layernorm")
_SEED = 20


def make_model(folder: Path) -> Path:
    """Write config.json, weights and a tokenizer; returns `folder`. The same bytes each time."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([_WORDS], trainer)
    spoken = len(_SPECIAL) + len(alphabet), tokenizer.get_vocab_size()
    tokenizer.add_tokens([f" <drill {number}>" for number in range(_VOCABULARY - tokenizer.get_vocab_size())])
    tokenizer.save(str(folder / "tokenizer.json"))
    pad, end = _SPECIAL
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad, "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), "utf-8")
    (folder / "config.json").write_text(json.dumps(_config(tokenizer.token_to_id(end))), "utf-8")
    _write_weights(folder / "model.safetensors", spoken)
    return folder


def _config(end: int | None) -> dict[str, object]:
    return MARK | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": _VOCABULARY,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KEY_HEADS,
        "head_dim": _HIDDEN // _HEADS,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": end,
        "dtype": "float32",
    }


def _write_weights(file: Path, spoken: tuple[int, int]) -> None:
    """Only the tokens in `spoken` get rows of the output layer, so that answers are words and not single bytes."""
    import numpy as np
    from safetensors.numpy import save_file

    draw = np.random.Generator(np.random.PCG64(_SEED)).standard_normal
    keys = _KEY_HEADS * _HIDDEN // _HEADS
    inside = {
        "self_attn.q_proj": (_HIDDEN, _HIDDEN),
        "self_attn.k_proj": (keys, _HIDDEN),
        "self_attn.v_proj": (keys, _HIDDEN),
        "self_attn.o_proj": (_HIDDEN, _HIDDEN),
        "mlp.gate_proj": (_INNER, _HIDDEN),
        "mlp.up_proj": (_INNER, _HIDDEN),
        "mlp.down_proj": (_HIDDEN, _INNER),
    }
    shapes = {f"model.layers.{layer}.{name}": shape for layer in range(_LAYERS) for name, shape in inside.items()}
    shapes |= {"model.embed_tokens": (_VOCABULARY, _HIDDEN), "lm_head": (_VOCABULARY, _HIDDEN)}
    weights = {f"{name}.weight": _SPREAD * draw(shape, np.float32) for name, shape in shapes.items()}
    first, last = spoken
    weights["lm_head.weight"][:first] = weights["lm_head.weight"][last:] = 0.0
    norms = [
        f"model.layers.{layer}.{name}_layernorm" for layer in range(_LAYERS) for name in ("input", "post_attention")
    ]
    weights |= {f"{name}.weight": np.ones(_HIDDEN, np.float32) for name in (*norms, "model.norm")}
    save_file(weights, file, {"format": "pt"})
