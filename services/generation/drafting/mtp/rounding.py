"""The storage of an MTP head's matrices in int8 arithmetic."""

from __future__ import annotations

from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.kernels.storages import packed_as

_ROUNDED = "q8_0"  # a block of 4 bits accepts next to nothing
_ROUNDED_OUTPUT = "q4_1"
"""On hidden states of Qwen2.5-Coder-1.5B the token that 4 bits choose is 0.6 % less probable, and a step reads a
quarter less.
"""


def in_arithmetic(tensor: StoredTensor, arithmetic: str) -> StoredTensor:
    """A matrix as linear layers of this arithmetic take it: int8 needs quantised numbers. Other tensors stay."""
    plain = len(tensor.shape) == 2 and not packed_as(tensor.storage).quantised
    return tensor.rounded(_ROUNDED) if plain and arithmetic == "int8" else tensor


def output_in_arithmetic(tensor: StoredTensor, arithmetic: str) -> StoredTensor:
    """The output matrix, for int8 in 4 bits unless its rows take no more."""
    if arithmetic != "int8":
        return tensor
    rounded = tensor.rounded(_ROUNDED_OUTPUT)
    return rounded if rounded.data.nbytes < tensor.data.nbytes else tensor
