"""The largest supported sizes, since kernels have fixed room, and the least context."""

from __future__ import annotations

from collections.abc import Mapping

LEAST_CONTEXT = 32  # tokens: the widest pass that is timed (timing.py); the probe needs 16
MOST_HEAD_DIM = 1024  # a head is rotated on the stack (kernels/attention/rotation.py)
MOST_RANK = 1024  # of an adapter's update (kernels/row_operations.py)
MOST_TAPS = 16  # of a short convolution: offsets of a row's inputs are on the stack (kernels/convolution.py)
MOST_STATE_DIM = 512  # of a head that is folded into a state: four times the largest of published models
STATE_LANES = 16  # columns of a state that are folded together; sizes of heads are multiples of it
MOST_EXPERTS = 4096  # of a layer: eight times the most published; each is described before a weight is read
MOST_EXPERTS_IN_ALL = 1 << 18  # of all layers: ten times the most published
_MOST_LAYERS = 1 << 14  # also described before a weight is read
_MOST_POSITIONS = (1 << 31) - 1  # positions and slots of rows are int32
_MOST_WIDTH = 1 << 24  # thirty times the widest published; products of two such sizes fit an int64

LARGEST: Mapping[str, int] = {
    "vocab_size": _MOST_WIDTH,
    "hidden_size": _MOST_WIDTH,
    "hidden_size_per_layer_input": _MOST_WIDTH,
    "intermediate_size": _MOST_WIDTH,
    "intermediate_size_mlp": _MOST_WIDTH,
    "moe_intermediate_size": _MOST_WIDTH,
    "num_hidden_layers": _MOST_LAYERS,
    "num_attention_heads": _MOST_LAYERS,
    "num_key_value_heads": _MOST_LAYERS,
    "head_dim": MOST_HEAD_DIM,
    "conv_L_cache": MOST_TAPS,
    "linear_conv_kernel_dim": MOST_TAPS,
    "linear_key_head_dim": MOST_STATE_DIM,
    "linear_value_head_dim": MOST_STATE_DIM,
    "linear_num_key_heads": _MOST_LAYERS,
    "linear_num_value_heads": _MOST_LAYERS,
    "mamba_d_conv": MOST_TAPS,
    "mamba_d_state": MOST_STATE_DIM,
    "mamba_d_head": MOST_STATE_DIM,
    "mamba_n_groups": _MOST_LAYERS,
    "mamba_n_heads": _MOST_LAYERS,
    "shared_intermediate_size": _MOST_WIDTH,
    "num_experts": MOST_EXPERTS,
    "num_local_experts": MOST_EXPERTS,
    "max_position_embeddings": _MOST_POSITIONS,
    "sliding_window": _MOST_POSITIONS,
    "attention_chunk_size": _MOST_POSITIONS,
    "floor_scale": _MOST_POSITIONS,
}
"""Largest sizes by their names in config.json."""


def fits(name: str, value: object) -> bool:
    """Whether a member of a configuration is a whole number from 1 to its largest size."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST.get(name, _MOST_POSITIONS)


def expected(name: str) -> str:
    return f"a whole number of at least 1 and at most {LARGEST.get(name, _MOST_POSITIONS)}"
