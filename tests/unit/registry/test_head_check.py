"""A safetensors header is read strictly: whatever else the bytes are, they are no head."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from ledger.errors import FormatError
from services.registry.head_check import MAX_HEADER_BYTES, Tensor, read_header

WHOLE = save({"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.int64)}, metadata={"format": "pt"})


def read(data: bytes) -> dict[str, Tensor]:
    return read_header(lambda start, length: data[start : start + length], len(data))


def made(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensor(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)} | more


def test_names_dtypes_shapes_and_places_come_out() -> None:
    tensors = read(WHOLE)
    assert {name: (each.dtype, each.shape, each.size) for name, each in tensors.items()} == {
        "a": ("F32", (2, 3), 24),
        "b": ("I64", (4,), 32),
    }
    assert max(each.start + each.size for each in tensors.values()) == len(WHOLE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        WHOLE[:-1],
        WHOLE + b"x",
        WHOLE[:20],
        b"\x80\x04\x95" + b"\x00" * 30,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", MAX_HEADER_BYTES + 1) + b" " * (MAX_HEADER_BYTES + 1),
        made(b"[]"),
        made(b'{"a":1}'),
        made(b"\xff"),
        made(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            b"1234",
        ),
        made({"a": tensor("PICKLE")}, b"1234"),
        made({"a": tensor(shape=[-1], offsets=[0, -4])}),
        made({"a": tensor(shape=[2])}, b"1234"),
        made({"a": tensor(offsets=[4, 8])}, b"12345678"),
        made({"a": tensor(), "b": tensor()}, b"1234"),
        made({"a": tensor(), "b": tensor()}, b"12345678"),
        made({"a": tensor(offsets=[0])}, b"1234"),
        made({"a": tensor(shape=[1.5])}, b"1234"),
        made({"a": tensor(shape=[2**52, 2**52])}, b"1234"),
        made({"a": tensor(shape=[1] * 9)}, b"1234"),
        made({"a": tensor(code="import os")}, b"1234"),
        made({"a": tensor(), "b": tensor(offsets=[8, 12])}, b"123456789abc"),
    ],
)
def test_anything_but_a_whole_tight_file_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read(data)


@given(st.binary(max_size=200))
def test_any_bytes_raise_only_our_error(data: bytes) -> None:
    for candidate in (data, made(data)):
        try:
            read(candidate)
        except FormatError:
            continue
