"""Rotary position embeddings (Su et al. 2021) as a model's configuration has them: `docs/numerics.md`, Rotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.generation.target.config.frequencies import KINDS, rotary
from services.generation.target.errors import ConfigInvalid, UnsupportedArchitecture


@dataclass(frozen=True, slots=True)
class Rotation:
    """How heads of one layer turn: element i with element i + n, for n inverse frequencies, or, of `neighbours`,
    element 2i with element 2i + 1; the rest stay.

    A layer without frequencies does not turn its heads. Where there are `long` ones, a context of more than `trained`
    tokens turns by those (LongRoPE, Ding et al. 2024): the context that is served decides, not the length of a
    sequence, because keys that are cached cannot be turned again.
    """

    inverse_frequencies: tuple[float, ...]  # exact float32 values
    factor: float = 1.0  # what cos and sin are multiplied with
    long: tuple[float, ...] = ()
    trained: int = 0
    neighbours: bool = False

    def within(self, context: int) -> tuple[float, ...]:
        """The inverse frequencies in a context of so many tokens."""
        return self.long if self.long and context > self.trained else self.inverse_frequencies


STILL = Rotation(())
"""Of layers without rotary position embeddings."""


def rotation_of(
    parameters: Mapping[str, Any], head_dim: int, context: int, divisors: Sequence[float] = (), *, partial: bool = False
) -> Rotation:
    """The meaning of transformers' `rope_parameters` for heads of `head_dim` in a model of `context` positions.

    `dynamic` changes its frequencies, for all positions, once a sequence outgrows the trained length: the bits of a row
    would then depend on tokens after it. It is served up to that length, where it equals `default`.

    Args:
        divisors: [head_dim / 2] or none, what frequencies are divided by.
        partial: whether `partial_rotary_factor` may be below 1.

    Raises:
        UnsupportedArchitecture: a kind that is not one of those listed in the message.
        ConfigInvalid: one of its numbers is missing or out of range.
    """
    kind, share = parameters.get("rope_type", "default"), parameters.get("partial_rotary_factor") or 1.0
    if kind not in tuple(KINDS):
        raise UnsupportedArchitecture(f"rope_type: {kind!r} is not supported; supported: {', '.join(KINDS)}")
    proportional = kind == "proportional"
    if share != 1.0 and not (partial or proportional):
        raise UnsupportedArchitecture(f"partial_rotary_factor: {share!r} is not supported in this family; supported: 1")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigInvalid(f"rope_parameters: partial_rotary_factor is {share!r}; expected a number up to 1")
    dim = head_dim if proportional else int(head_dim * share)
    if dim % 2 or not dim:
        raise ConfigInvalid(
            f"rope_parameters: partial_rotary_factor {share} turns {dim} elements; expected an even number"
        )
    frequencies, factor = rotary(parameters, dim, context, divisors)
    if kind != "longrope":
        return Rotation(frequencies, factor)
    long, _ = rotary({**parameters, "short_factor": parameters.get("long_factor")}, dim, context)
    return Rotation(frequencies, factor, long, int(parameters["original_max_position_embeddings"]))
