"""The files of `tests/vectors/numerics`: inputs and the expected bits of each section of `docs/numerics.md`.

A number is eight hexadecimal digits, its float32 bits; an array is its shape and the digits of its numbers, the last
index fastest. Weights are their storage, shape and published bytes.
"""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from services.generation.target.arrays import Bytes, Float32
from services.generation.target.family import StateRule, Temperature
from services.generation.target.files.stored_tensor import LAYOUTS, StoredTensor
from services.generation.target.kernels.attention.cache_dtypes import FORMS
from tests.numerics.arithmetic import Arithmetic, Heads, assert_same_bits

FOLDER = Path(__file__).parents[1] / "vectors" / "numerics"
Case = dict[str, Any]
Outcome = dict[str, Float32]


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_bytes())


def array(values: Float32) -> dict[str, Any]:
    """As it is written; which NaN an operation gives is not defined, so that all are written as one."""
    one = np.where(np.isnan(values), np.float32(np.nan), values)
    return {"shape": list(values.shape), "float32": np.ascontiguousarray(one, ">f4").tobytes().hex()}


def values_of(written: Mapping[str, Any]) -> Float32:
    flat = np.frombuffer(bytes.fromhex(written["float32"]), ">f4").astype(np.float32)
    return flat.reshape(written["shape"])


def weights(tensor: StoredTensor) -> dict[str, Any]:
    return {"storage": tensor.storage, "shape": list(tensor.shape), "bytes": tensor.data.tobytes().hex()}


def tensor_of(name: str, written: Mapping[str, Any]) -> StoredTensor:
    data = np.frombuffer(bytes.fromhex(written["bytes"]), np.uint8)
    return StoredTensor.of_bytes(name, written["storage"], tuple(written["shape"]), data)


def random_rows(storage: str, rows: int, columns: int, random: np.random.Generator) -> Bytes:
    """[rows, bytes of a row]: any integers in the blocks, scales and numbers about 0.05."""
    layout = LAYOUTS[storage]
    count = rows * (columns // layout.weights)
    if storage == "mxfp4":
        blocks = random.integers(0, 256, (count, layout.size), np.uint8)
        blocks[:, 0] = random.integers(119, 123, count)
        return blocks.reshape(rows, -1)
    if not layout.halves:
        numbers = random.normal(0, 0.05, rows * columns).astype(np.float32)
        if storage == "bfloat16":
            return (numbers.view(np.uint32) >> 16).astype("<u2").view(np.uint8).reshape(rows, -1)
        return numbers.astype("<f2" if storage == "float16" else "<f4").view(np.uint8).reshape(rows, -1)
    blocks = random.integers(0, 256, (count, layout.size), np.uint8)
    scales = random.uniform(0.0005, 0.005, (count, layout.halves // 2)).astype("<f2").view(np.uint8)
    blocks[:, layout.halves_at : layout.halves_at + layout.halves] = scales
    return blocks.reshape(rows, -1)


def check(
    name: str, arithmetic: Arithmetic, turns: int = 1, storages: Collection[str] | None = None,
    forms: Collection[str] = FORMS.keys(),
) -> None:  # fmt: skip
    """Compute a file's cases and compare. `storages`: if given, only cases with weights in these; `forms`: only cases
    with a cache in these. `turns`: repetitions of rows, since kernels compute many rows differently.
    """
    for case in read(name):
        storage = case.get("weights", {}).get("storage")
        if storages is not None and storage is not None and storage not in storages:
            continue
        if "cache_dtype" in case and case["cache_dtype"] not in forms:
            continue
        outcome = SECTIONS[name](arithmetic, case, turns)
        assert outcome.keys() == case["expected"].keys()
        for part, found in outcome.items():
            expected = values_of(case["expected"][part])
            assert_same_bits(found, np.concatenate([expected] * turns))


def elementary(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    if "gate" in case:
        gate, up = (np.concatenate([values_of(case[name])[None]] * turns) for name in ("gate", "up"))
        return {"clamped": arithmetic.clamped(gate, up, case["slope"], case["limit"])}
    x = values_of(case["x"])[None]
    rows = np.concatenate([x] * turns)
    return {
        "silu": arithmetic.silu(rows),
        "gelu": arithmetic.gelu(rows),
        "capped": arithmetic.capped(rows, case["cap"]),
    }


def embedding(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    tokens = np.array(case["tokens"] * turns, np.int64)
    return {"x": arithmetic.embedding(tensor_of("weights", case["weights"]), tokens, case.get("factor", 1.0))}


def norm(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    v = np.concatenate([values_of(case["v"])] * turns)
    return {"y": arithmetic.rms_norm(v, values_of(case["weight"]), case["epsilon"])}


def linear(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    x = np.concatenate([values_of(case["x"])] * turns)
    bias = values_of(case["bias"]) if "bias" in case else None
    return {"y": arithmetic.linear(x, tensor_of("weights", case["weights"]), bias)}


def linear_int8(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    x = np.concatenate([values_of(case["x"])] * turns)
    return {"y": arithmetic.linear(x, tensor_of("weights", case["weights"]), values_of(case["bias"]), "int8")}


def adapter(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    y, x = (np.concatenate([values_of(case[name])] * turns) for name in ("y", "x"))
    down, up = values_of(case["down"]), values_of(case["up"])
    return {"y": arithmetic.low_rank(y, x, down, up, case["scale"])}


def experts(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    logits, outputs = (np.concatenate([values_of(case[name])] * turns) for name in ("logits", "outputs"))
    scales = values_of(case["scales"]) if "scales" in case else None
    sigmoid = case.get("sigmoid", False)
    bias = values_of(case["bias"]) if "bias" in case else None
    picks, shares = arithmetic.routed(logits, outputs.shape[1], case["normalised"], sigmoid, scales, bias)
    return {"picks": picks.astype(np.float32), "shares": shares, "y": arithmetic.mixed(outputs, shares)}


def rotation(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    queries, keys, values = (np.concatenate([values_of(case[name])] * turns) for name in ("queries", "keys", "values"))
    norms = (values_of(case["query_norm"]), values_of(case["key_norm"])) if "query_norm" in case else None
    temperature = Temperature(**case["temperature"]) if "temperature" in case else None
    interleaved = case.get("interleaved", False)
    value_norms = case.get("value_norms", False)
    heads = Heads(queries, keys, values, norms, case.get("epsilon", 1e-5), interleaved, temperature, value_norms)
    positions = np.array(case["positions"] * turns, np.int64)
    frequencies = values_of(case["frequencies"]).tolist()
    found = arithmetic.rotation(heads, positions, frequencies, case["attention_factor"], case["cache_dtype"])
    return dict(zip(("queries", "keys", "values"), found, strict=True))


def short_convolution(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    bcx, weights, positions = values_of(case["bcx"]), values_of(case["weights"]), np.array(case["positions"] * turns)
    return {"y": arithmetic.short_convolution(bcx, weights, positions, case["cache_dtype"])}


def states(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    rule, positions = StateRule(**case["rule"], layers=(True,)), np.array(case["positions"] * turns)
    lines, weights, bias = (values_of(case[name]) for name in ("lines", "weights", "bias"))
    vectors = [values_of(case[name]) for name in rule.vectors]
    return {"y": arithmetic.states(lines, rule, weights, bias, vectors, positions, case["cache_dtype"])}


def attention(arithmetic: Arithmetic, case: Case, turns: int = 1) -> Outcome:
    queries = np.concatenate([values_of(case["queries"])] * turns)
    positions = np.array(case["positions"] * turns, np.int64)
    keys, values, cap = values_of(case["keys"]), values_of(case["values"]), case.get("cap", 0.0)
    cached, sinks = case["cache_dtype"], values_of(case["sinks"]) if "sinks" in case else None
    return {
        f"window {window}": arithmetic.attention(
            queries, keys, values, positions, window, cached, cap, sinks, case.get("chunk", 0)
        )
        for window in case["windows"]
    }


SECTIONS: Mapping[str, Callable[[Arithmetic, Case, int], Outcome]] = {
    "elementary": elementary,
    "embedding": embedding,
    "norm": norm,
    "linear": linear,
    "linear_int8": linear_int8,
    "adapter": adapter,
    "experts": experts,
    "rotation": rotation,
    "attention": attention,
    "short_convolution": short_convolution,
    "states": states,
}
"""By the name of the file; each file is a list of cases."""
