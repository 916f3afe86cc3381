"""Comparison of float32, int8, and int8 with smaller caches, on one 4-bit file: the time of a pass, the nats a token of
texts, and the agreement of greedy tokens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.arrays import Float32
from services.generation.target.config.config import read_config, usual_cache
from services.generation.target.cpu import load_target
from services.generation.target.model_path import model_path
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

ARITHMETICS = ("float32", "int8")
PROFILES = {
    "float32": ("float32", "float32"),
    "int8": ("int8", "float32"),
    "int8, bfloat16 cache": ("int8", "bfloat16"),
    "int8, int8 cache": ("int8", "int8"),
}
"""Arithmetic of linear layers and type of cached keys and values."""
ROWS = (1, 2, 4, 8, 16, 32, 128)
CONTEXTS = (100, 4000)
_TOKENS, _ROUNDS, _WINDOW = 96, 15, 2048
_TEXTS = ("README.md", "docs/guarantees.md")
_ROOT = Path(__file__).parents[1]
QUESTIONS = _ROOT / "demo" / "main_job" / "questions.jsonl"


def measure(model: Path | None = None, *, quick: bool = False) -> dict[str, Any]:
    """Measure milliseconds of passes (least of alternating rounds), nats a token of kolm's pages, and greedy agreement.

    `model` is a GGUF file, by default SmolLM2's. `quick`: only passes, in float32 and in int8 with its usual cache.
    """
    path = model or model_path("smollm2")
    config = read_config(path)
    targets = {
        name: load_target(path, context_length=4608, cache_tokens=9216, arithmetic=arithmetic, cache_dtype=cached)
        for name, (arithmetic, cached) in PROFILES.items()
        if not quick or cached == usual_cache(config, arithmetic)
    }
    passes = {f"{context} tokens before": _passes(targets, context) for context in CONTEXTS}
    found: dict[str, Any] = {"milliseconds": passes}
    if quick:
        return found
    tokenizer = Tokenizer(path)
    return found | {
        "nats a token": {name: round(_loss(target, tokenizer), 4) for name, target in targets.items()},
        "greedy": _agreement(targets, tokenizer),
    }


def _passes(targets: Mapping[str, Target], context: int) -> dict[str, dict[str, float]]:
    best = {name: dict.fromkeys(map(str, ROWS), float("inf")) for name in targets}
    tables: dict[str, list[int]] = {name: [] for name in targets}
    for name, target in targets.items():
        target.blocks.extend(tables[name], context + max(ROWS))
    for _ in track(range(_ROUNDS), "passes"):
        for count in ROWS:
            for name, target in targets.items():
                rows = RowsBuilder()
                rows.add_tree(tables[name], context, list(range(100, 100 + count)), range(-1, count - 1))
                built, start = rows.build(), time.perf_counter()
                target.forward(built)
                best[name][str(count)] = min(best[name][str(count)], 1e3 * (time.perf_counter() - start))
    for name, target in targets.items():
        target.blocks.release(tables[name])
    return {name: {count: round(ms, 2) for count, ms in row.items()} for name, row in best.items()}


def _loss(target: Target, tokenizer: Tokenizer) -> float:
    """Mean nats a token over the texts, without the first token of each window."""
    losses: list[float] = []
    for text in _TEXTS:
        tokens = tokenizer.encode((_ROOT / text).read_text())
        for first in range(0, len(tokens) - 1, _WINDOW):
            window = tokens[first : first + _WINDOW]
            expected = np.array(window[1:])
            for rows in _logits(target, window[:-1]):
                logits = rows.astype(np.float64)
                top = logits.max(axis=1)
                total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
                losses += (total - logits[np.arange(len(logits)), expected[: len(logits)]]).tolist()
                expected = expected[len(logits) :]
    return float(np.mean(losses))


def _agreement(targets: Mapping[str, Target], tokenizer: Tokenizer) -> dict[str, Any]:
    """The agreement with float32's greedy text: the share of equal tokens, and the length of the equal prefix."""
    same: dict[str, list[float]] = {name: [] for name in targets if name != "float32"}
    together: dict[str, list[int]] = {name: [] for name in same}
    questions = [json.loads(line)["messages"] for line in QUESTIONS.read_text().splitlines()]
    for messages in track(questions, "greedy"):
        prompt = tokenizer.encode_chat(messages)
        text = _greedy(targets["float32"], prompt)
        for name, shared in same.items():
            likely = [row.argmax() for rows in _logits(targets[name], [*prompt, *text[:-1]]) for row in rows]
            agree = np.array(likely[len(prompt) - 1 :]) == np.array(text)
            shared.append(float(agree.mean()))
            together[name].append(_TOKENS if agree.all() else int(np.argmin(agree)))
    return {
        name: {
            "same token": round(float(np.mean(shared)), 4),
            "tokens before the first other one, median": float(np.median(together[name])),
            "texts alike to the end": f"{sum(n == _TOKENS for n in together[name])} of {len(shared)}",
        }
        for name, shared in same.items()
    }


def _greedy(target: Target, prompt: list[int]) -> list[int]:
    text, some = [], prompt
    with target.blocks.lent(len(prompt) + _TOKENS) as table:
        for done in range(_TOKENS):
            start = 0 if not done else len(prompt) + done - 1
            text.append(int(_forward(target, table, start, some)[-1].argmax()))
            some = text[-1:]
    return text


def _logits(target: Target, tokens: list[int]) -> Iterator[Float32]:
    """Yield the logits [rows, vocabulary] of each pass over a text: a view that is valid until the next pass."""
    with target.blocks.lent(len(tokens)) as table:
        for start in range(0, len(tokens), max(ROWS)):
            yield _forward(target, table, start, tokens[start : start + max(ROWS)])


def _forward(target: Target, table: list[int], start: int, tokens: list[int]) -> Float32:
    rows = RowsBuilder()
    rows.add_tree(table, start, tokens, range(-1, len(tokens) - 1))
    return target.forward(rows.build()).logits
