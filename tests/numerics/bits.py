"""float32 numbers compared by their bits; any NaN is as good as another."""

from __future__ import annotations

import numpy as np

from services.generation.target.arrays import Float32, UInt32


def assert_same_bits(found: Float32, expected: Float32) -> None:
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape
    same = (bits(found) == bits(expected)) | (np.isnan(found) & np.isnan(expected))
    if not same.all():
        where = tuple(int(i) for i in np.argwhere(~same)[0])
        shown = (
            f"{found[where]!r} ({bits(found)[where]:08x}), expected {expected[where]!r} ({bits(expected)[where]:08x})"
        )
        raise AssertionError(f"{int((~same).sum())} of {same.size} numbers differ, the first at {where}: {shown}")


def bits(values: Float32) -> UInt32:
    return np.ascontiguousarray(values).view(np.uint32)


def any_bits(random: np.random.Generator, *shape: int) -> Float32:
    """Numbers of all magnitudes, subnormals and zeros of both signs among them; none infinite or NaN."""
    drawn = random.integers(0, 2**32, shape, np.uint32)
    drawn = np.where(random.random(shape) < 0.05, drawn & np.uint32(0x80000000), drawn)
    return np.where(drawn & 0x7F800000 == 0x7F800000, drawn & ~np.uint32(0x40000000), drawn).view(np.float32)
