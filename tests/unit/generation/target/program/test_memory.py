"""Memory of logits is taken again when nothing of an array is left, and not before."""

from __future__ import annotations

import numpy as np

from services.generation.target.program.buffers import ReusedMemory


def test_memory_is_handed_out_again_when_the_array_and_all_views_of_it_have_gone() -> None:
    memory = ReusedMemory()
    first = memory.take(4, 16)
    place = first.ctypes.data
    row = first[2, :3].reshape(3)[::-1]
    del first
    second = memory.take(4, 16)
    assert second.ctypes.data != place
    row[:] = 7.0
    second[:] = 1.0
    np.testing.assert_array_equal(row, 7.0)
    del row
    assert memory.take(2, 16).ctypes.data == place


def test_arrays_that_are_in_use_share_nothing() -> None:
    memory = ReusedMemory()
    held = [memory.take(rows, 32) for rows in (1, 5, 3, 256, 0, 2)]
    for number, array in enumerate(held):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(held))
    assert [array.shape for array in held] == [(rows, 32) for rows in (1, 5, 3, 256, 0, 2)]
    assert all(array.flags.c_contiguous and array.flags.writeable for array in held)


def test_memory_that_is_too_small_is_made_anew_and_the_number_of_pieces_stays() -> None:
    memory = ReusedMemory()
    for rows in (1, 2, 100, 3):
        array = memory.take(rows, 16)
        assert array.shape == (rows, 16)
        del array
    assert len(memory._free) == 1
