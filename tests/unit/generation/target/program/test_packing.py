"""Packed weights against a slow reading of `storages`: every value of every storage at its place."""

import numpy as np
import pytest
from numpy.typing import NDArray

from services.generation.target.errors import WeightsInvalid
from services.generation.target.files.stored_tensor import LAYOUTS, StoredTensor
from services.generation.target.kernels.storages import GROUP, PANEL, ROTATION, Storage, padded, upper_place
from services.generation.target.program.packing import PackedWeights, Packing

_OFFSET = {"q8_0": 128, "q4_0": 8, "q5_0": 16, "q6_k": 32}


class Reader:
    """The dequantised weight of a column and an input, read from a panel's bytes one value at a time."""

    def __init__(self, packed: PackedWeights) -> None:
        self.storage: Storage = packed.storage
        self.panels = packed.panels

    def weight(self, column: int, place: int) -> np.float32:
        storage, panel, c = self.storage, self.panels[column // PANEL], column % PANEL
        group, k = divmod(place, GROUP)
        shared, inner = divmod(group, storage.groups)
        size = storage.header + storage.groups * storage.group
        header = panel[shared * size :][: storage.header].tobytes()
        body = panel[shared * size + storage.header + inner * storage.group :][: storage.group].tobytes()
        return np.float32(self._value(header, body, c, k))

    def _value(self, header: bytes, body: bytes, c: int, k: int) -> float:
        name, scales = self.storage.name, self.storage.scales
        half = np.frombuffer(body[:scales], np.float16) if name in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1") else None
        if name == "q8_0":
            assert half is not None
            return float(half[c]) * (self._field(body[scales:], 8, c, k) - 128)
        low = self._field(body[scales : scales + GROUP * PANEL // 2], 4, c, k)
        above = body[scales + GROUP * PANEL // 2 :]
        if half is not None:
            q = low + (16 * self._upper(above, 1, c, k) if name.startswith("q5") else 0)
            least = float(half[PANEL + c]) if name.endswith("_1") else 0.0
            return float(np.float32(float(half[c]) * (q - _OFFSET.get(name, 0))) + np.float32(least))
        tops = np.frombuffer(header, np.float16)
        if name == "q6_k":
            scale = np.frombuffer(body[:scales], np.int8)[k // 16 * PANEL + c]
            return float(tops[c]) * int(scale) * (low + 16 * self._upper(above, 2, c, k) - 32)
        q = low + (16 * self._upper(above, 1, c, k) if name == "q5_k" else 0)
        least = float(tops[PANEL + c]) * body[PANEL + c]
        return float(np.float32(float(tops[c]) * body[c] * q) - np.float32(least))

    @staticmethod
    def _field(words: bytes, bits: int, c: int, k: int) -> int:
        in_word = 32 // bits
        word = int(np.frombuffer(words, np.uint32).reshape(-1, PANEL)[k // in_word, c])
        turned = word >> ROTATION[bits] | word << (32 - ROTATION[bits])
        return turned >> (bits * (k % in_word)) & ((1 << bits) - 1)

    @staticmethod
    def _upper(words: bytes, bits: int, c: int, k: int) -> int:
        in_word = 32 // bits
        word = int(np.frombuffer(words, np.uint32).reshape(-1, PANEL)[k // in_word, c])
        return word >> upper_place(bits, k % in_word) & ((1 << bits) - 1)


def pack(storage: str, inputs: int, rows: NDArray[np.uint8], order: NDArray[np.int64] | None = None) -> PackedWeights:
    return Packing.of([StoredTensor("w", storage, (len(rows), inputs), rows)], order).packed()


def rows(storage: str, columns: int, inputs: int) -> NDArray[np.uint8]:
    """Rows with finite scales and random values."""
    layout, rng = LAYOUTS[storage], np.random.default_rng(7)
    if layout.weights == 1:
        values = rng.uniform(1, 2, (columns, inputs)).astype(np.float16 if storage == "float16" else np.float32)
        return values.view(np.uint8) if storage != "bfloat16" else values.view(np.uint16)[:, 1::2].copy().view(np.uint8)
    found = rng.integers(0, 256, (columns, layout.row_bytes(inputs)), dtype=np.uint8)
    blocks = found.reshape(columns, -1, layout.size)
    halves = rng.uniform(-1, 1, (*blocks.shape[:2], layout.halves // 2)).astype(np.float16).view(np.uint8)
    blocks[..., layout.halves_at : layout.halves_at + layout.halves] = halves
    if storage == "mxfp4":
        blocks[..., 0] %= 250
    return found


@pytest.mark.parametrize("storage", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"])
def test_every_value_is_where_the_kernels_read_it(storage: str) -> None:
    columns, inputs = PANEL + 3, 512
    published = rows(storage, columns, inputs)
    expected = StoredTensor("w", storage, (columns, inputs), published).values()
    reader = Reader(pack(storage, inputs, published))
    for column in (0, 1, PANEL - 1, PANEL, columns - 1):
        found = [reader.weight(column, place) for place in range(inputs)]
        np.testing.assert_array_equal(np.array(found, np.float32), expected[column])


@pytest.mark.parametrize("storage", sorted(LAYOUTS))
@pytest.mark.parametrize("columns", [1, PANEL, 700])
def test_an_order_repeats_rows_and_leaves_columns_empty(storage: str, columns: int) -> None:
    inputs = 512
    published = rows(storage, columns, inputs)
    order = np.random.default_rng(1).integers(-1, columns, padded(columns, PANEL))
    empty = np.zeros((1, published.shape[1]), np.uint8)
    expected = pack(storage, inputs, np.concatenate([published, empty])[order])
    assert (pack(storage, inputs, published, order).panels == expected.panels).all()


def test_plain_numbers_of_odd_widths_end_in_zeros() -> None:
    values = np.arange(1, 2 * 40 + 1, dtype=np.float32).reshape(2, 40)
    panel = pack("float32", 40, values.view(np.uint8)).panels[0].view(np.float32).reshape(-1, GROUP, PANEL)
    assert (panel[:, :, 0].reshape(-1)[:40] == values[0]).all()
    assert (panel[:, :, 1].reshape(-1)[40:] == 0).all()


@pytest.mark.parametrize("storage", sorted(LAYOUTS))
def test_what_is_not_finite_is_refused_wherever_it_stands(storage: str) -> None:
    columns, inputs = 2 * PANEL + 5, 512
    layout, published = LAYOUTS[storage], rows(storage, 2 * PANEL + 5, 512)
    pack(storage, inputs, published)
    last = published.reshape(columns, -1, layout.size)[-1, -1]
    if layout.halves:
        last[layout.halves_at : layout.halves_at + layout.halves].view(np.uint16)[-1] = 0xFC00
    elif storage == "mxfp4":
        last[0] = 253
    else:
        last[:] = np.array([np.inf], np.float16 if storage == "float16" else np.float32).view(np.uint8)[-layout.size :]
    with pytest.raises(WeightsInvalid, match="w "):
        pack(storage, inputs, published)
