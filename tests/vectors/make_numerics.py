"""Makes `numerics/`: inputs and the output bits that `docs/numerics.md` requires, by the reference.

    python -m tests.vectors.make_numerics

Inputs are drawn with fixed seeds, so the same code writes the same bytes; a test compares them with the files.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from services.generation.target.adapters import Adapter, AdapterIdentity, LowRank
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.rope import Rotation, rotary
from services.generation.target.family import DELTA, MAMBA, StateRule
from services.generation.target.files.stored_tensor import LAYOUTS, StoredTensor
from services.generation.target.weights import expected_shapes
from tests.numerics import operations
from tests.numerics.arithmetic import any_bits
from tests.numerics.model import Model, WrittenWeights, by_reference, digest
from tests.numerics.reference import ReferenceArithmetic
from tests.numerics.sampling import ReferenceSampling, bits64, functions, noises, outcome
from tests.numerics.vectors import SECTIONS, Case, array, random_rows, values_of, weights

HERE = Path(__file__).parent
_FIRST = ("float32", "bfloat16", "float16", "q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k")
_SECOND = ("q5_0", "q5_1", "iq4_nl")
"""Storages that draw from numbers of their own, so that the cases before them keep theirs."""
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip

LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0 + i / 7 for i in range(9)], "original_max_position_embeddings": 4096,
}  # fmt: skip


def drawn(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape, np.float32)


def stored(random: np.random.Generator, storage: str, outputs: int, inputs: int) -> StoredTensor:
    return StoredTensor("weights", storage, (outputs, inputs), random_rows(storage, outputs, inputs, random))


def tiny(*shape: int) -> np.ndarray:
    """Numbers from 2^-149 to 2^-116, most of them subnormal, drawn apart: all others keep their values."""
    random = np.random.default_rng(15)
    return np.ldexp(drawn(random, *shape), -118 - random.integers(0, 30, shape)).astype(np.float32)


def short(values: np.ndarray) -> np.ndarray:
    """Cut to bfloat16."""
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


def elementary() -> Iterator[Case]:
    random = np.random.default_rng(0)
    special = [0.0, -0.0, 1e-45, -1e-45, 87.0, -87.0, -87.00001, 88.0, 88.5, -104.0, 3e38, -3e38, np.inf, -np.inf]
    halves = (np.arange(-126, 127, 23) + 0.5) * np.log(2)
    spread = random.uniform(-90, 90, 60), random.uniform(-8, 8, 60), halves, np.nextafter(halves, 0)
    x = np.concatenate([np.array(special), *spread]).astype(np.float32)
    yield {"x": array(np.concatenate([x, any_bits(random, 60)])), "cap": 1.0}
    near = random.uniform(-2, 2, 20).astype(np.float32)
    near[:8] = tiny(8)
    yield {"x": array(np.concatenate([near, 30 * near])), "cap": 30.0}
    special = np.array([7.0, 7.0000005, -7.0, -7.0000005, 0.0, -0.0, 1e-45, np.inf, -np.inf, np.nan], np.float32)
    gate, up = (random.uniform(-9, 9, 40).astype(np.float32) for _ in range(2))
    gate, up = np.concatenate([gate, special, gate[:10]]), np.concatenate([up, up[:10], special])
    yield {"gate": array(gate), "up": array(up), "slope": 1.702, "limit": 7.0}


def embedding() -> Iterator[Case]:
    random = np.random.default_rng(1)
    negative_zero = np.zeros((2, 32), np.float32)
    negative_zero[1] = -0.0
    for tensor in (
        stored(random, "q4_1", 40, 64),
        stored(random, "q6_k", 3, 256),
        StoredTensor("weights", "float32", (2, 32), negative_zero.view(np.uint8)),
    ):
        last = tensor.shape[0] - 1
        yield {"weights": weights(tensor), "tokens": [last, 0, last // 2]}
    yield {"weights": weights(stored(random, "bfloat16", 3, 32)), "tokens": [2, 0], "factor": 72**0.5}


def norm() -> Iterator[Case]:
    random = np.random.default_rng(2)
    for size in (1, 15, 16, 37, 100):
        v = drawn(random, 4, size) * np.float32([[1], [1e-22], [1e18], [1e30]])
        for epsilon in (1e-5, 1e-6) if size == 37 else (1e-5,):
            weight = drawn(random, size)
            if size == 100:
                weight[::4] = tiny(25)
            yield {"v": array(v), "weight": array(weight), "epsilon": epsilon}


def linear() -> Iterator[Case]:
    random = np.random.default_rng(3)
    for storage in _FIRST:
        inputs, outputs = {1: (260, 5), 32: (160, 33), 256: (512, 3)}[LAYOUTS[storage].weights]
        x, bias = drawn(random, 1, inputs), drawn(random, outputs)
        tensor = stored(random, storage, outputs, inputs)
        yield {"x": array(x), "weights": weights(tensor), "bias": array(bias)}
    wide, x = any_bits(random, 4, 40), any_bits(random, 3, 40)
    wide[:3], x[:2] = (np.ldexp(tiny(rows, 40), 54) for rows in (3, 2))  # whose products' sums are subnormal
    tensor = StoredTensor("weights", "float32", wide.shape, wide.view(np.uint8))
    yield {"x": array(x), "weights": weights(tensor)}
    random = np.random.default_rng(10)
    tensor = stored(random, "mxfp4", 33, 160)
    exponents = tensor.data.reshape(33, -1, 17)[:, :, 0]
    exponents[:4, 0] = 0, 1, 2, 252  # the smallest weights are subnormal, the largest near the end
    x, bias = drawn(random, 2, 160), drawn(random, 33)
    yield {"x": array(x), "weights": weights(tensor), "bias": array(bias)}
    random = np.random.default_rng(11)
    for storage in _SECOND:
        tensor, x, bias = stored(random, storage, 33, 160), drawn(random, 1, 160), drawn(random, 33)
        yield {"x": array(x), "weights": weights(tensor), "bias": array(bias)}


def linear_int8() -> Iterator[Case]:
    random = np.random.default_rng(9)
    for storage in _FIRST[3:]:
        outputs, inputs = (33, 96) if LAYOUTS[storage].weights == 32 else (3, 512)
        x = drawn(random, 2, inputs)
        x[1, :32], x[1, 32:64], x[1, 64:] = 0.0, x[1, 32:64] * np.float32(1e-24), any_bits(random, inputs - 64)
        tensor = stored(random, storage, outputs, inputs)
        yield {"x": array(x), "weights": weights(tensor), "bias": array(drawn(random, outputs))}
    random = np.random.default_rng(12)
    for storage in _SECOND:
        tensor, x = stored(random, storage, 33, 96), drawn(random, 2, 96)
        x[1, :32], x[1, 32:64] = 0.0, x[1, 32:64] * np.float32(1e-24)
        bias = drawn(random, 33)
        if storage == "q5_1":
            x[1], bias[::2] = tiny(96), tiny(17)
        yield {"x": array(x), "weights": weights(tensor), "bias": array(bias)}


def adapter() -> Iterator[Case]:
    random = np.random.default_rng(4)
    for rank, inputs, outputs, scale in ((1, 8, 3, 2.0), (5, 140, 12, 0.1), (130, 4, 3, 1.5)):
        y, x, down, up = (
            array(drawn(random, *shape)) for shape in ((2, outputs), (2, inputs), (rank, inputs), (outputs, rank))
        )
        yield {"y": y, "x": x, "down": down, "up": up, "scale": scale}


def experts() -> Iterator[Case]:
    """Equal logits, zeros of both signs and weights that underflow are among them."""
    random = np.random.default_rng(9)
    for count, chosen, size, normalised in ((8, 3, 20, True), (37, 5, 33, False), (4, 4, 3, False)):
        logits = 3 * drawn(random, 3, count)
        logits[0], logits[1, :2], logits[2, 1] = np.rint(logits[0]), [0.0, -0.0], 95.0
        outputs = drawn(random, 3, chosen, size)
        yield {"logits": array(logits), "outputs": array(outputs), "normalised": normalised}
    logits = 20 * drawn(random, 3, 9)
    logits[0, :4] = 88.5, -87.5, 104.0, -0.0
    yield {"logits": array(logits), "outputs": array(drawn(random, 3, 4, 5)), "normalised": False, "sigmoid": True}
    logits, outputs, scales = 3 * drawn(random, 3, 7), drawn(random, 3, 2, 5), drawn(random, 7)
    yield {"logits": array(logits), "outputs": array(outputs), "normalised": True, "scales": array(scales)}
    for normalised in (True, False):
        logits, outputs, bias = 3 * drawn(random, 3, 9), drawn(random, 3, 4, 5), drawn(random, 9) / 8
        logits[0, :4], logits[1, :3], bias[:3] = [88.5, -87.5, 104.0, -0.0], 20.0, [0.0, -0.0, 0.0]
        scales = np.full(9, 1.5, np.float32)
        yield {
            "logits": array(logits), "outputs": array(outputs), "normalised": normalised, "bias": array(bias),
            "scales": array(scales),
        }  # fmt: skip


def rotation() -> Iterator[Case]:
    random = np.random.default_rng(5)
    kinds = ({}, {"rope_type": "linear", "factor": 3.0}, LLAMA3, YARN, LONGROPE)
    for number, (kind, dim, turned) in enumerate(zip(kinds, (8, 12, 24, 32, 24), (8, 12, 24, 32, 18), strict=True)):
        parameters = {"rope_type": "default", "rope_theta": 1e4, **kind}
        frequencies, factor = rotary(parameters, turned, 8192)
        heads = [drawn(random, 4, count, dim) for count in (2, 1, 1)]
        if number < 2:
            heads = [np.concatenate([each[:1], tiny(1, *each.shape[1:]), each[2:]]) for each in heads]
        case: Case = {
            "parameters": parameters, "frequencies": array(np.array(frequencies, np.float32)),
            "attention_factor": factor, "cache_dtype": "bfloat16" if number % 2 else "float32",
            "positions": [0, 1, 63, 7531],
            **dict(zip(("queries", "keys", "values"), map(array, heads), strict=True)),
        }  # fmt: skip
        if number >= 2:
            case |= {name: array(drawn(random, dim)) for name in ("query_norm", "key_norm")} | {"epsilon": 1e-6}
        yield case
    for turned, more in ((42, {"interleaved": True}), (0, {"temperature": {"floor": 64, "scale": 0.1}})):
        frequencies, factor = rotary({"rope_theta": 5e5}, turned, 8192)
        yield {
            "parameters": {"rope_theta": 5e5}, "frequencies": array(np.array(frequencies, np.float32)),
            "attention_factor": factor, "cache_dtype": "float32", "positions": [0, 62, 63, 7531],
            "queries": array(drawn(random, 4, 2, 44)), "keys": array(drawn(random, 4, 1, 44)),
            "values": array(drawn(random, 4, 1, 44)), **more,
        }  # fmt: skip
    parameters = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    frequencies, factor = rotary(parameters, 40, 8192)
    yield {
        "parameters": parameters, "frequencies": array(np.array(frequencies, np.float32)), "attention_factor": factor,
        "cache_dtype": "bfloat16", "positions": [0, 1, 7531], "queries": array(drawn(random, 3, 1, 40)),
        "keys": array(drawn(random, 3, 1, 40)), "values": array(drawn(random, 3, 1, 40)), "value_norms": True,
        "query_norm": array(drawn(random, 40)), "key_norm": array(drawn(random, 40)), "epsilon": 1e-6,
    }  # fmt: skip
    frequencies, factor = rotary({"rope_theta": 1e4}, 6, 8192)
    yield {
        "parameters": {"rope_theta": 1e4}, "frequencies": array(np.array(frequencies, np.float32)),
        "attention_factor": factor, "cache_dtype": "int8", "positions": [7531],
        **{name: array(drawn(random, 1, count, 6)) for name, count in (("queries", 2), ("keys", 1), ("values", 1))},
    }  # fmt: skip


def attention() -> Iterator[Case]:
    random = np.random.default_rng(6)
    for heads, kv_heads, dim, windows, cache_dtype, cap in (
        (4, 2, 8, [0, 1, 70], "float32", 0.0),
        (3, 1, 12, [0, 64], "bfloat16", 0.0),
        (2, 1, 6, [70], "float32", 5.0),
    ):
        keys, values = (short(drawn(random, 130, kv_heads, dim)) for _ in range(2))
        if cap:
            values[:, 0, :3] = short(tiny(130, 3))
        yield {
            "queries": array(3 * drawn(random, 4, heads, dim)), "keys": array(keys), "values": array(values),
            "positions": [0, 63, 64, 129], "windows": windows, "cache_dtype": cache_dtype, "cap": cap,
        }  # fmt: skip
    keys, values = (short(drawn(random, 90, 2, 5)) for _ in range(2))
    yield {
        "queries": array(drawn(random, 4, 6, 5)), "keys": array(keys), "values": array(values),
        "positions": [0, 63, 64, 89], "windows": [0, 70], "cache_dtype": "float32", "cap": 0.0,
        "sinks": array(np.array([0.3, -2.0, 9.0, 200.0, -200.0, 1.5], np.float32)),
    }  # fmt: skip
    keys, values = (short(drawn(random, 100, 1, 4)) for _ in range(2))
    yield {
        "queries": array(drawn(random, 4, 2, 4)), "keys": array(keys), "values": array(values),
        "positions": [49, 50, 64, 99], "windows": [0, 20], "chunk": 50, "cache_dtype": "float32", "cap": 0.0,
    }  # fmt: skip
    keys, values = (drawn(random, 67, 1, 5) for _ in range(2))
    yield {
        "queries": array(3 * drawn(random, 4, 3, 5)), "keys": array(keys), "values": array(values),
        "positions": [0, 63, 64, 66], "windows": [0, 65], "cache_dtype": "int8", "cap": 5.0,
    }  # fmt: skip


def short_convolution() -> Iterator[Case]:
    random = np.random.default_rng(13)
    for channels, taps, cache_dtype, positions in (
        (8, 3, "float32", [0, 1, 2, 5, 63, 64, 65]),
        (37, 4, "bfloat16", [0, 2, 3, 9]),
        (70, 3, "float32", [1, 5]),
    ):
        bcx = drawn(random, positions[-1] + 1, 3 * channels)
        bcx[0, :4], bcx[1, :4], bcx[1, 4:6] = -0.0, 1e-30, any_bits(random, 2)
        yield {
            "bcx": array(bcx), "weights": array(drawn(random, channels, taps)), "cache_dtype": cache_dtype,
            "positions": positions,
        }  # fmt: skip


def states() -> Iterator[Case]:
    random = np.random.default_rng(14)
    for module, heads, sizes, taps, biased, cache_dtype in (
        (DELTA, (2, 4), (16, 16), 4, False, "float32"),
        (DELTA, (1, 1), (32, 16), 3, False, "bfloat16"),
        (MAMBA, (1, 1), (16, 32), 4, True, "float32"),
        (MAMBA, (2, 2), (16, 16), 5, False, "bfloat16"),
    ):
        rule = StateRule(module, (True,), *heads, *sizes, taps, biased, tiled=heads == (2, 4))
        lines = drawn(random, 7, sum(rule.projections.values()))
        lines[0, :4], lines[1, :4], lines[2, 4:6], lines[3, -1] = -0.0, 1e-30, [1e4, -1e4], 90.0
        bias = drawn(random, rule.convolved) * np.float32(biased)
        yield {
            "rule": {name: value for name, value in asdict(rule).items() if name != "layers"}, "lines": array(lines),
            "weights": array(drawn(random, rule.convolved, taps)), "bias": array(bias),
            **{name: array(drawn(random, size)) for name, size in rule.vectors.items()}, "cache_dtype": cache_dtype,
            "positions": [0, 1, 4, 6],
        }  # fmt: skip


def model() -> dict[str, Any]:
    """Two layers with everything that families differ in; matrices in several storages."""
    frequencies, factor = rotary({"rope_theta": 5e5, **YARN, "original_max_position_embeddings": 64}, 8, 256)
    config = TargetConfig(
        architecture="qwen3", vocab_size=40, hidden_size=32, intermediate_size=40, layers=2, heads=4, kv_heads=2,
        head_dim=8, norm_epsilon=1e-6, context_length=256, tied_embeddings=False, attention_bias=True,
        output_bias=False, mlp_bias=True, head_norms=True, windows=(0, 50),
        rotations=(Rotation(frequencies, factor),) * 2, query_scale=8**-0.5, eos_token_ids=(),
    )  # fmt: skip
    random = np.random.default_rng(7)
    storages = iter(("q4_1", "q8_0", "float16", "q4_0", "bfloat16", "q8_0", "q4_1") * 3)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        if len(shape) == 1:
            plain = (drawn(random, *shape) / 4 + 1).astype(np.float32)
            tensors[name] = StoredTensor(name, "float32", shape, plain.view(np.uint8))
        else:
            storage = "bfloat16" if shape[1] % 32 else next(storages)
            data = random_rows(storage, *shape, random)
            tensors[name] = StoredTensor(name, storage, shape, data)
    updates = {
        (layer, module): LowRank(drawn(random, 3, inputs) / 4, drawn(random, outputs, 3) / 4, 0.7)
        for layer, module, outputs, inputs in (
            (0, "self_attn.k_proj", 16, 32), (1, "mlp.up_proj", 40, 32), (1, "mlp.down_proj", 32, 40),
        )
    }  # fmt: skip
    made = Model(config, WrittenWeights(tensors), Adapter(AdapterIdentity("adapter", ""), updates))
    tokens = random.integers(0, 40, 75).tolist()
    cases = []
    for adapted, cache_dtype in ((False, "float32"), (True, "float32"), (False, "bfloat16"), (False, "int8")):
        logits = by_reference(made, tokens, adapted, cache_dtype)
        rows = {row: array(logits[row]) for row in (0, 74)}
        cases.append({"adapted": adapted, "cache_dtype": cache_dtype, "logits": rows, "sha256": digest(logits)})
    return {**made.to_json(), "tokens": tokens, "cases": cases}


def sampling() -> dict[str, Any]:
    random = np.random.default_rng(8)
    exponents = [0.0, -0.0, 1.0, -1.0, 709.0, 709.1, -708.0, -708.1, -27.7, 650.3]
    logarithms = [0.0, 1.0, 0.5**0.5, 2.0**-33, 1.0 - 2.0**-33, 5e-324, 1e300, 3e-300]
    points = {
        "exp64": [bits64(x) for x in (*exponents, *random.uniform(-30, 0, 12).tolist())],
        "log64": [bits64(x) for x in (*logarithms, *random.uniform(0, 2, 12).tolist())],
    }
    places = [
        {"seed": str(seed), "choice": choice, "position": position, "token": token}
        for seed, choice, position, token in (
            (0, 0, 0, 0), (7, 0, 12, 3), (7, 1, 12, 3), (2**64 - 1, 3, 100_000, 151_935), (2**32, 0, 1, 4),
        )
    ]  # fmt: skip
    rows = [_row(random, case, params) for case, params in enumerate(_PARAMS)]
    return {
        "functions": {"at": points, "expected": functions(ReferenceSampling(), points)},
        "noise": {"at": places, "expected": noises(ReferenceSampling(), places)},
        "rows": [row | {"expected": outcome(ReferenceSampling(), row)} for row in rows],
    }


_PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5, "seed": 2**64 - 1},
    {"temperature": 1.3, "top_p": 0.8, "seed": 3},
    {"temperature": 1.0, "min_p": 0.05, "seed": 4},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1, "seed": 5},
    {
        "temperature": 2.0, "presence_penalty": 0.3, "frequency_penalty": 0.7, "min_tokens": 8,
        "logit_bias": [[0, 4.5], [30, -100.0], [7, 0.1]], "seed": 6,
    },
)  # fmt: skip


def _row(random: np.random.Generator, case: int, params: dict[str, Any]) -> Case:
    """Equal logits, zeros of both signs and tokens that cannot be chosen are among them."""
    logits = 3 * drawn(random, 40)
    logits = np.rint(logits) if case % 2 == 0 else logits
    logits[[5, 11]], logits[[2, 3]], logits[20] = logits.max(), [0.0, -0.0], -np.inf
    return {
        "logits": array(logits), "params": params | {"seed": str(params.get("seed", 0))},
        "prompt": [1, 5, 5, 9], "output": [5, 30, 7, 7, 2], "ends": [11, 39], "choice": case % 3,
        "positions": [9, 10, 11, 1000, 131_071],
    }  # fmt: skip


CASES = {
    "elementary": elementary, "embedding": embedding, "norm": norm, "linear": linear, "linear_int8": linear_int8,
    "adapter": adapter, "experts": experts, "rotation": rotation, "attention": attention,
    "short_convolution": short_convolution, "states": states,
}  # fmt: skip


def section(name: str) -> list[Case]:
    cases = []
    for case in CASES[name]():
        outcome = SECTIONS[name](ReferenceArithmetic(), case, 1)
        cases.append(case | {"expected": {part: array(found) for part, found in outcome.items()}})
    if name == "elementary":
        x = values_of(cases[0]["x"])
        cases[0] |= {"exp": array(operations.exp(x)), "tanh": array(operations.tanh(x))}
    return cases


def files() -> dict[str, bytes]:
    """Every file's path under `tests/vectors`, and its bytes."""
    written: dict[str, Any] = {name: section(name) for name in CASES} | {"model": model(), "sampling": sampling()}
    return {f"numerics/{name}.json": _lines(document) for name, document in written.items()}


def _lines(document: Any) -> bytes:
    """JSON with a line for each case, or for each member."""
    inside = (
        [json.dumps(case) for case in document]
        if isinstance(document, list)
        else [f"{json.dumps(name)}: {json.dumps(member)}" for name, member in document.items()]
    )
    start, end = "[]" if isinstance(document, list) else "{}"
    return "\n".join([start, ",\n".join(inside), end, ""]).encode()


def main() -> None:
    for path, data in files().items():
        target = HERE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


if __name__ == "__main__":
    main()
