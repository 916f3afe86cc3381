"""Members of a model's configuration, checked where they are read."""

from __future__ import annotations

import math
from typing import Any

from transformers import PreTrainedConfig

from services.generation.target.errors import ConfigInvalid


def check_whole(value: object, name: str, place: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigInvalid(f"{place}: {name} is {value!r}; expected a whole number of at least 1")


def head_dim(config: PreTrainedConfig) -> int:
    return int(getattr(first(config), "head_dim", None) or config.hidden_size // config.num_attention_heads)


def first(config: PreTrainedConfig) -> Any:
    """The configuration that has the sizes of heads: of the first layer, where layers differ."""
    return config if getattr(config, "per_layer_config", None) is None else config.per_layer_config[0]


def layer_types(config: PreTrainedConfig, place: str) -> list[str]:
    kinds = list(config.layer_types)
    if len(kinds) < config.num_hidden_layers:
        raise ConfigInvalid(f"{place}: layer_types has {len(kinds)} entries; expected {config.num_hidden_layers}")
    return kinds[: config.num_hidden_layers]


def positive(config: PreTrainedConfig, name: str, place: str) -> float:
    value = getattr(config, name, None)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigInvalid(f"{place}: {name} is {value!r}; expected a number above 0")
    return float(value)
