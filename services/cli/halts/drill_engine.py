"""A model and a generation service for the drill alone.

The model has two layers of random weights over a vocabulary of the drill's own words. Everybody's drill has the same
one, and nothing else serves it: its base identifier names a drill in every receipt. The service passes its probe. While
the file `fault` lies beside the model, a row's logits depend on how many rows are computed beside it, as on a machine
whose kernels do not keep the contract. It loads no other model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.generation.settings import GenerationSettings
from services.runtime.process import run_service

if TYPE_CHECKING:
    from services.generation.target.rows import Rows
    from services.generation.target.target import PassOutput, Target


NAME = "kolm-drill"
FAULT = "fault"
"""A file in the model's folder: while it is there, the drill's engine computes wrong bits."""
MARK = {"kolm_drill": "random weights, for `kolm halts drill`"}
"""In the model's config.json. The drill's engine loads no model without it."""

PROMPT = "This is a drill. This is a drill. This is"
_SPECIAL = ("<|pad|>", "<|end|>")
_WORDS = "This is a drill. Nothing here is real: no receipt of this log, no halt, no resume is about a real model. "
_VOCABULARY, _HIDDEN, _INNER, _LAYERS, _HEADS, _KEY_HEADS = 384, 64, 128, 2, 4, 2
_SPREAD = 0.1  # of weights: wide enough that greedy output is not one token again and again
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


def load(directory: Path, **options: Any) -> Target:
    """The drill's model with a pass that `FAULT` breaks. Raises CannotStart for every other model."""
    from services.generation.target.cpu import load_target
    from services.runtime.process import CannotStart

    config = directory / "config.json"
    if not config.is_file() or not MARK.items() <= json.loads(config.read_text("utf-8")).items():
        raise CannotStart(f"--model: {directory} is not the drill's model; this server breaks its answers on purpose")
    target = load_target(directory, **options)
    target.forward = _breakable(target, directory / FAULT)  # type: ignore[method-assign]
    return target


def _breakable(target: Target, fault: Path) -> Any:
    """The target's pass; while `fault` is there, wide passes give every token's logit to another token."""
    import numpy as np

    from services.generation.target.target import PassOutput

    exact = target.forward

    def forward(rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        computed = exact(rows, feature_layers)
        width = len(rows.wanted)
        if width == 1 or not fault.exists():
            return computed
        turned = np.roll(computed.logits, width, axis=1)
        return PassOutput(np.ascontiguousarray(turned), computed.features)

    return forward


async def main(settings: GenerationSettings) -> None:
    """The composition root of a real server, with this `load`."""
    from services.generation.target.without_torch import spare_torch
    from services.generation.warm_up import compile_beside

    compile_beside("sampling", settings.log_format)
    spare_torch()
    from services.generation.serving import main

    await main(settings, load)


if __name__ == "__main__":
    sys.exit(run_service(GenerationSettings, main))
