"""Which modules a fused linear layer is made of, and where in its output each of them stands."""

from __future__ import annotations

from dataclasses import dataclass

from services.generation.target.config import TargetConfig


@dataclass(frozen=True, slots=True)
class Piece:
    """A module of a fused layer: its output begins at column `first` of the layer's."""

    module: str
    first: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """The four linear layers of a decoder layer, as the canonical pass computes them."""

    qkv: tuple[Piece, ...]
    output: tuple[Piece, ...]
    gate_up: tuple[Piece, ...]
    down: tuple[Piece, ...]


def pieces_of(config: TargetConfig) -> Pieces:
    """In the order in which the target concatenates their weights."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return Pieces(
        qkv=(
            Piece("self_attn.q_proj", 0),
            Piece("self_attn.k_proj", queries),
            Piece("self_attn.v_proj", queries + keys),
        ),
        output=(Piece("self_attn.o_proj", 0),),
        gate_up=(Piece("mlp.gate_proj", 0), Piece("mlp.up_proj", config.intermediate_size)),
        down=(Piece("mlp.down_proj", 0),),
    )
