"""Sizes that differ from layer to layer in a GGUF file (Gemma 4), in the terms of transformers' config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.generation.target.errors import UnsupportedArchitecture
from services.generation.target.families.family import Family
from services.generation.target.files.gguf_file import GgufFile
from services.generation.target.files.gguf_metadata import GgufMetadata


def sizes_by_layer(file: GgufFile, family: Family, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Members of config.json. Heads of layers with a window have sizes of their own, the last layers read the keys of
    others, and of some models have MLPs twice as wide.

    Raises ConfigInvalid or UnsupportedArchitecture; the message names the field.
    """
    metadata, name, layers = file.metadata, family.gguf_name, sizes["num_hidden_layers"]
    pattern = f"{name}.attention.sliding_window_pattern"
    windows = [bool(each) for each in _of_each(metadata, pattern, layers, least=0)]
    if windows[-1]:
        raise metadata.refused(pattern, "true or false for each layer, false for the last")
    window = metadata.whole(f"{name}.attention.sliding_window", least=1) if any(windows) else None
    key_heads = _of_each(metadata, f"{name}.attention.head_count_kv", layers)
    shared = metadata.whole(f"{name}.attention.shared_kv_layers", 0)
    inner = _of_each(metadata, f"{name}.feed_forward_length", layers)
    wide = inner[-1] != inner[0]
    if inner != [inner[0] * (2 if wide and number >= layers - shared else 1) for number in range(layers)]:
        raise UnsupportedArchitecture(
            f"{file.path}: {name}.feed_forward_length; supported: one size, or twice as much in the last layers, which "
            "read the keys of others"
        )
    whole = _head_dim(metadata, name, "", metadata.whole(f"{name}.attention.key_length", least=1))
    windowed = _head_dim(metadata, name, "_swa", metadata.whole(f"{name}.attention.key_length_swa", whole, least=1))
    values = f"model.layers.{windows.index(False)}.self_attn.v_proj.weight"
    return {
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windows],
        "sliding_window": window,
        "intermediate_size": inner[0],
        "use_double_wide_mlp": wide,
        "num_kv_shared_layers": shared,
        "attention_k_eq_v": values not in file.names(),
        "num_key_value_heads": key_heads[0],
        "head_dim": windowed,
        "per_layer_config": {
            number: {"head_dim": windowed if each else whole, "num_key_value_heads": key_heads[number]}
            for number, each in enumerate(windows)
        },
        "hidden_size_per_layer_input": metadata.whole(f"{name}.embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": sizes["vocab_size"],
    }


def _of_each(metadata: GgufMetadata, key: str, layers: int, least: int = 1) -> list[int]:
    """A field with one number for all layers, or one for each."""
    if isinstance(metadata.get(key), int):
        return [metadata.whole(key, least=least)] * layers
    found = metadata.numbers(key).tolist()
    if len(found) < layers or not all(isinstance(each, int) and each >= least for each in found[:layers]):
        raise metadata.refused(key, f"a whole number of at least {least}, or one for each of {layers} layers")
    return list(map(int, found[:layers]))


def _head_dim(metadata: GgufMetadata, name: str, kind: str, head_dim: int) -> int:
    """Of keys; values have the same, and heads turn as one."""
    for option in ("attention.value_length", "rope.dimension_count"):
        found = metadata.whole(f"{name}.{option}{kind}", head_dim)
        if found != head_dim:
            raise UnsupportedArchitecture(
                f"{metadata.path}: {name}.{option}{kind} is {found}; supported: the {head_dim} of a query head"
            )
    return head_dim
