"""Linear layers whose rows do not depend on how many rows there are."""

from __future__ import annotations

import torch

_ROWS_HINT = 8  # oneDNN picks the packed layout for about this many rows; any number runs on it
_STEPS = ((16, 1), (64, 4), (1 << 30, 16))  # up to so many rows: their number is rounded up to a multiple of this


def padded_rows(rows: int) -> int:
    """The number of rows that a pass over `rows` rows gives its linear layers.

    oneDNN compiles a kernel for every number of rows it meets, in about the time of a whole small pass, and keeps 1,024
    of all layers' kernels. Trees come in all sizes, so sizes are rounded up; the rows that fill a pass up are dropped.
    """
    multiple = next(step for most, step in _STEPS if rows <= most)
    return -(-rows // multiple) * multiple


class PackedLinear:
    """y = x W^T + b on weights that oneDNN packed once; the plain weight is not kept.

    oneDNN's packed matrix product runs one kernel for any number of rows and sums along the input dimension in one
    order, so each row of y has the bits that it has alone (the probe checks that on the machine at hand). x [rows,
    in], y [rows, out], float32.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y


class PlainLinear:
    """y = x W^T + b by the device's own matrix product, for machines without oneDNN and for fixed-shape passes."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self._weight, self._bias)


Linear = PackedLinear | PlainLinear


def cpu_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    packs = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return PackedLinear(weight, bias) if packs else PlainLinear(weight, bias)
