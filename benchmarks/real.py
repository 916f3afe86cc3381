"""A public model beside llama.cpp and transformers: the same file, the same threads, the same prompts, one run.

The published GGUF file is written in other storages, too: the same model for all contenders, byte for byte.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gguf import GGUFReader, GGUFWriter, Keys, ReaderField
from gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGUFValueType
from gguf.quants import dequantize, quantize
from rich.progress import track

from benchmarks.machine import read_bandwidth
from benchmarks.specbench.peers import Decode, llama_decoding, transformers_decoding
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.events import Event
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.files.stored_tensor import LAYOUTS
from services.generation.target.model_path import model_path
from services.generation.target.rows import RowsBuilder

STORAGES = ("q4_1", "q8_0", "bfloat16", "float32")  # the first is the published file
ROWS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (100, 1000, 4000)
_TOKENS, _PROMPT, _ROUNDS = 96, 512, 5
_KOLM = "kolm off"
PROMPTS = (
    "Explain to a ten-year-old why the sky is blue during the day and red in the evening.",
    "Write a short Python function that removes duplicates from a list and keeps the order of its elements.",
    "Summarise the story of the tortoise and the hare in three sentences, and say what it teaches.",
    "A shop sells pens for 3 euros and notebooks for 5. What do four pens and two notebooks cost? Show your steps.",
)
_SCRATCH = Path(__file__).parent / "scratch"
_WRITTEN = {Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE, "general.alignment", "GGUF.version"}


def measure() -> list[dict[str, Any]]:
    """A row for each storage: the pass alone, decoding and prompts beside the peers."""
    published = model_path("smollm2")
    found = []
    for storage in track(STORAGES, "real model"):
        path = published if storage == STORAGES[0] else in_storage(published, storage)
        kolm = Kolm(path)
        row: dict[str, Any] = {"storage": storage, "file megabytes": round(path.stat().st_size / 1e6, 1)}
        row["pass"] = passes(kolm.target)
        row["python between passes, ms"] = round(kolm.between(), 3)
        peers: dict[str, Decode] = {_KOLM: kolm.generate, "llama.cpp": llama_decoding(path, ())}
        if storage == "float32":
            peers["transformers generate"] = transformers_decoding(path, ())
        row |= _beside(peers, kolm.tokenizer)
        del peers, kolm
        gc.collect()
        found.append(row)
    return found


def passes(target: CpuTarget) -> dict[str, Any]:
    """Milliseconds of passes over chains, minima of rounds, and of reading as many bytes as the weights have, between
    them: a machine's memory is shared, and gives more in one second than in another.
    """
    table: list[int] = []
    target.blocks.extend(table, max(CONTEXTS) + max(ROWS))
    passes = {(rows, context): _chain(table, context, rows) for rows in ROWS for context in CONTEXTS}
    best, bandwidth = dict.fromkeys(passes, float("inf")), 0.0
    for _ in range(4 * _ROUNDS):
        bandwidth = max(bandwidth, read_bandwidth(reads=3))
        for key, rows in passes.items():
            start = time.perf_counter()
            target.forward(rows)
            best[key] = min(best[key], 1e3 * (time.perf_counter() - start))
    target.blocks.release(table)
    limit = 1e3 * target.weight_bytes / bandwidth
    return {
        "memory limit": round(limit, 2),
        "over the limit": round(best[1, CONTEXTS[0]] / limit, 2),
        "milliseconds": {
            str(context): {str(rows): round(best[rows, context], 2) for rows in ROWS} for context in CONTEXTS
        },
        "over one row": {str(rows): round(best[rows, CONTEXTS[0]] / best[1, CONTEXTS[0]], 2) for rows in ROWS},
    }


def _chain(table: list[int], length: int, count: int) -> Any:
    rows = RowsBuilder()
    rows.add_tree(table, length, list(range(100, 100 + count)), range(-1, count - 1))
    return rows.build()


def _beside(contenders: Mapping[str, Decode], tokenizer: Tokenizer) -> dict[str, Any]:
    """ms a token of decoding and of prompts: contenders take turns, medians over prompts and rounds."""
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    long = [token for prompt in prompts * _PROMPT for token in prompt][:_PROMPT]
    decoding: dict[str, list[float]] = {name: [] for name in contenders}
    reading: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(_ROUNDS):
        order.reverse()
        for prompt in prompts:
            for name in order:
                whole = seconds(contenders[name], prompt, _TOKENS)
                decoding[name].append(1e3 * (whole - seconds(contenders[name], prompt, 1)) / (_TOKENS - 1))
        asked = [turn + 10, *long[1:]]  # in no engine's cache
        for name in order:
            reading[name].append(1e3 * seconds(contenders[name], asked, 1) / _PROMPT)

    def shown(times: dict[str, list[float]]) -> dict[str, Any]:
        ms = {name: round(median(values), 2) for name, values in times.items()}
        return {"ms a token": ms, "speed over": {n: round(v / ms[_KOLM], 2) for n, v in ms.items() if n != _KOLM}}

    return {"decoding": shown(decoding), "prompts": shown(reading)}


def seconds(decode: Callable[[Any, int], object], prompt: Any, tokens: int) -> float:
    start = time.perf_counter()
    decode(prompt, tokens)
    return time.perf_counter() - start


class Kolm:
    """The engine with speculation off: sampling, scheduling and streaming included."""

    def __init__(self, path: Path, context_length: int | None = None) -> None:
        target = load_target(path, context_length=context_length)
        assert isinstance(target, CpuTarget)
        self.target, self.tokenizer = target, Tokenizer(path)

    def generate(self, prompt: Sequence[int], tokens: int) -> list[int]:
        return self.generate_all([prompt], tokens)

    def generate_all(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[int]:
        """Run all prompts concurrently; yields the tokens of all of them as they are made."""
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        settings = EngineSettings(prefix_caching=False)
        core = EngineCore(
            self.target, {}, self.tokenizer.stream, PassCost.line(1.0, 1.0), settings, time.perf_counter,
        )  # fmt: skip
        made: list[int] = []

        def sink(event: Event) -> None:
            made.extend(getattr(event, "token_ids", ()))

        for number, prompt in enumerate(prompts):
            core.add(EngineRequest(str(number), tuple(prompt), sampling), sink)
        while not core.idle:
            core.step()
        return made

    def between(self) -> float:
        """Milliseconds of a decoding step that are not the pass."""
        inside = [0.0]
        forward = self.target.forward

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return forward(*arguments)
            finally:
                inside[0] += time.perf_counter() - start

        prompt = self.tokenizer.encode(PROMPTS[0])
        self.generate(prompt, _TOKENS)
        self.target.forward = timed  # type: ignore[method-assign, assignment]
        whole = seconds(self.generate, prompt, _TOKENS)
        self.target.forward = forward  # type: ignore[method-assign]
        return 1e3 * (whole - inside[0]) / _TOKENS


def in_storage(published: Path, storage: str, folder: Path = _SCRATCH) -> Path:
    """The file with all matrices in `storage`, written to `folder` once: the values of the published file, rounded if
    the storage has fewer bits.
    """
    path = folder / f"{published.stem}.{storage}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(published)
    architecture = str(reader.fields[Keys.General.ARCHITECTURE].contents())
    beside = path.with_suffix(".part")
    writer = GGUFWriter(beside, architecture)
    writer.data_alignment = GGUF_DEFAULT_ALIGNMENT
    for name, field in reader.fields.items():
        if name not in _WRITTEN and not name.startswith("GGUF."):
            _copy(writer, name, field)
    kind = LAYOUTS[storage].ggml
    values = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in values.items():
        weights = dequantize(tensor.data, tensor.tensor_type)
        if weights.ndim == 1:
            writer.add_tensor(name, weights)
        else:
            writer.add_tensor(name, quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside.rename(path)
    return path


def _copy(writer: GGUFWriter, name: str, field: ReaderField) -> None:
    kind = field.types[0]
    part = field.types[-1] if kind == GGUFValueType.ARRAY else None
    writer.add_key_value(name, field.contents(), kind, sub_type=part)
