"""A GGUF file with random weights, written by the `gguf` package, small enough to make in every test."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH, GGMLQuantizationType
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from services.generation.target.arrays import Bytes
from services.generation.target.files.stored_tensor import LAYOUTS
from tests.fakes.tiny_model import END, PAD, SPECIAL_TOKENS, TEMPLATE, tiny_tokenizer
from tests.numerics.vectors import random_rows

_ARCHITECTURES = {"llama": MODEL_ARCH.LLAMA, "qwen2": MODEL_ARCH.QWEN2, "qwen3": MODEL_ARCH.QWEN3}

Change = Callable[[dict[str, Any]], object]
"""Changes, in place, tensors (type and rows, by GGUF's name) or metadata (by field) before they are written."""


@dataclass(frozen=True, slots=True)
class _Shape:
    architecture: str
    layers: int
    hidden: int
    vocab: int
    tied: bool

    heads: ClassVar[int] = 4
    kv_heads: ClassVar[int] = 2

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def metadata(self) -> dict[str, Any]:
        fields = {
            "block_count": self.layers,
            "context_length": 512,
            "embedding_length": self.hidden,
            "feed_forward_length": 2 * self.hidden,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10_000.0,
            "vocab_size": self.vocab,
        }
        return {f"{self.architecture}.{key}": value for key, value in fields.items()}

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Rows and columns by transformers' name, without `.weight`."""
        hidden, keys = self.hidden, self.kv_heads * self.head_dim
        inside = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (2 * hidden, hidden),
            "mlp.up_proj": (2 * hidden, hidden),
            "mlp.down_proj": (hidden, 2 * hidden),
        }
        head = {} if self.tied else {"lm_head": (self.vocab, hidden)}
        layers = {f"model.layers.{i}.{name}": size for i in range(self.layers) for name, size in inside.items()}
        return {"model.embed_tokens": (self.vocab, hidden)} | head | layers

    def vectors(self) -> dict[str, int]:
        """Sizes by transformers' name."""
        inside = {"input_layernorm.weight": self.hidden, "post_attention_layernorm.weight": self.hidden}
        if self.architecture == "qwen3":
            inside |= {"self_attn.q_norm.weight": self.head_dim, "self_attn.k_norm.weight": self.head_dim}
        if self.architecture == "qwen2":
            keys = self.kv_heads * self.head_dim
            inside |= {"self_attn.q_proj.bias": self.hidden}
            inside |= {"self_attn.k_proj.bias": keys, "self_attn.v_proj.bias": keys}
        layers = {f"model.layers.{i}.{name}": size for i in range(self.layers) for name, size in inside.items()}
        return {"model.norm.weight": self.hidden} | layers


def make_tiny_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    storage: str = "q4_1",
    layers: int = 1,
    hidden: int = 256,
    vocab: int = 384,
    tied: bool = False,
    seed: int = 0,
    part_tensors: int = 0,
    change_tensors: Change = lambda tensors: None,
    change_metadata: Change = lambda metadata: None,
) -> Path:
    """Write a llama, qwen2 or qwen3 whose matrices are stored as `storage`, its vectors as float32; return `path`.

    Four query heads, two key heads; tokenizer and chat template are the tiny model's. `hidden` is a multiple of the
    block size of `storage`. `part_tensors` above 0 splits the model into parts of so many tensors, beside `path`, and
    the first part's path is returned.
    """
    shape = _Shape(architecture, layers, hidden, vocab, tied)
    metadata = shape.metadata() | tokenizer_metadata(vocab)
    tensors = _tensors(shape, storage, np.random.default_rng(seed))
    change_metadata(metadata)
    change_tensors(tensors)
    write_gguf(path, architecture, metadata, tensors, part_tensors)
    return min(path.parent.glob(f"{path.stem}-*-of-*.gguf")) if part_tensors else path


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, NDArray[Any]]],
    part_tensors: int = 0,
) -> None:
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=part_tensors)
    for key, value in metadata.items():
        _write_field(writer, key, value)
    for name, (kind, rows) in tensors.items():
        writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokenizer_metadata(vocab: int) -> dict[str, Any]:
    """The tiny model's tokenizer as a converter would write it."""
    fast: Tokenizer = tiny_tokenizer(vocab).backend_tokenizer
    tokens = [str(fast.id_to_token(index)) for index in range(vocab)]
    alphabet = set(bytes_to_unicode().values())
    kinds = [3 if token in SPECIAL_TOKENS else 1 if set(token) <= alphabet else 4 for token in tokens]
    merges: list[list[str]] = json.loads(fast.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.eos_token_id": tokens.index(END),
        "tokenizer.ggml.padding_token_id": tokens.index(PAD),
        "tokenizer.chat_template": TEMPLATE,
    }


def _tensors(shape: _Shape, storage: str, random: np.random.Generator) -> dict[str, tuple[int, NDArray[Any]]]:
    names = gguf.get_tensor_name_map(_ARCHITECTURES[shape.architecture], shape.layers)
    tensors: dict[str, tuple[int, NDArray[Any]]] = {}
    for name, (rows, columns) in shape.matrices().items():
        data = random_rows(storage, rows, columns, random)
        interleaved = shape.architecture == "llama" and ("q_proj" in name or "k_proj" in name)
        tensors[f"{names.get_name(name)}.weight"] = (
            int(LAYOUTS[storage].ggml),
            _interleaved(data, rows // shape.head_dim) if interleaved else data,
        )
    for name, size in shape.vectors().items():
        stem, _, kind = name.rpartition(".")
        values = random.normal(1.0 if kind == "weight" else 0.0, 0.1, size).astype(np.float32)
        tensors[f"{names.get_name(stem)}.{kind}"] = (int(GGMLQuantizationType.F32), values)
    return tensors


def _interleaved(rows: Bytes, heads: int) -> Bytes:
    """As llama.cpp's convert_hf_to_gguf.py permutes the rows of q and k of a Llama."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _write_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
