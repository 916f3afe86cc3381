"""Tensors of a transformers directory: names and shapes checked against the config before a byte is converted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from services.generation.target.config import TargetConfig
from services.generation.target.errors import WeightsInvalid
from services.generation.target.weight_files import weight_files

_FLOATS = ("F32", "BF16", "F16")


def expected_shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the canonical pass reads; linear weights are [out, in]."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.attention_bias),
        "self_attn.k_proj": (keys, hidden, config.attention_bias),
        "self_attn.v_proj": (keys, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        if config.head_norms:
            shapes[prefix + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (config.head_dim,)
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    return shapes


class Checkpoint:
    """The open weight files of one model; a tensor is read from disk when it is asked for and kept by nobody."""

    def __init__(self, where: dict[str, Any]) -> None:
        self._where = where

    def stored(self, name: str) -> torch.Tensor:
        """The tensor in the dtype it is stored in."""
        tensor: torch.Tensor = self._where[name].get_tensor(name)
        return tensor

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The tensor, converted; exact from bfloat16 and float16 to float32."""
        return self.stored(name).to(dtype)


@contextmanager
def open_checkpoint(directory: Path, config: TargetConfig) -> Iterator[Checkpoint]:
    """Open the weights of a model directory and check all names, shapes and dtypes against its config.

    Raises:
        WeightsInvalid: a file is missing or truncated, a tensor is missing, unknown, or of another shape or dtype.
    """
    with ExitStack() as stack:
        where: dict[str, Any] = {}
        for path in weight_files(directory):
            try:
                shard = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise WeightsInvalid(
                    f"{path}: not a whole safetensors file ({error}); download or copy it again"
                ) from error
            where.update(dict.fromkeys(shard.keys(), shard))
        _check(where, config)
        yield Checkpoint(where)


def _check(where: dict[str, Any], config: TargetConfig) -> None:
    expected = expected_shapes(config)
    missing = sorted(expected.keys() - where.keys())
    if missing:
        raise WeightsInvalid(f"weights: {_listing(missing)} missing, which config.json calls for")
    ignored = {"lm_head.weight"} if config.tied_embeddings else set()
    unknown = sorted(n for n in where.keys() - expected.keys() - ignored if not n.endswith("rotary_emb.inv_freq"))
    if unknown:
        raise WeightsInvalid(f"weights: {_listing(unknown)} not known to this architecture; does config.json fit them?")
    for name, shape in expected.items():
        tensor = where[name].get_slice(name)
        if tuple(tensor.get_shape()) != shape:
            raise WeightsInvalid(f"weights: {name} has shape {tensor.get_shape()}, config.json makes it {list(shape)}")
        if tensor.get_dtype() not in _FLOATS:
            raise WeightsInvalid(
                f"weights: {name} has dtype {tensor.get_dtype()}; expected one of {', '.join(_FLOATS)}"
            )


def _listing(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
