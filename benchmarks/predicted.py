"""`python -m benchmarks.predicted`: a file with one name changed, beside off, the file before the edit as prediction.

The file is the beginning of the standard library's textwrap. SmolLM2-135M does not copy two hundred lines without a
slip, so the answer is dictated: the target computes each pass as ever, and then the row's token is the answer's. The
times are those of real passes over real rows; the acceptance is that of a model that edits without a slip.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.arithmetic import ARITHMETICS
from benchmarks.engines import Kolm, KolmEngine, Run
from benchmarks.machine import RESULTS, machine
from benchmarks.real import in_storage
from services.generation.drafting.rest import RestDrafter
from services.generation.drafting.suffix import SuffixDrafter
from services.generation.target.model_path import model_path
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput

HEAD = Path("demo/smollm2/head")
LINES = 200
PUBLISHED, QUANTISED = "q4_1", ("q4_1", "q8_0")
OLD, NEW = "width", "columns"


class Dictated:
    """A target whose rows say the tokens of a known text, after they were computed."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.text: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        computed: PassOutput = self._target.forward(rows, feature_layers)
        following = np.array(self.text)[np.minimum(rows.positions[rows.wanted] + 1, len(self.text) - 1)]
        computed.logits[np.arange(len(following)), following] = 1e4
        return computed


def measure(storage: str, arithmetic: str, rounds: int, methods: Sequence[str]) -> dict[str, Any]:
    """For each method and prediction: times of off over its own, median of the rounds, and what a pass brought."""
    published = model_path("smollm2")
    model = published if storage == PUBLISHED else in_storage(published, storage)
    engine = KolmEngine(model, HEAD, arithmetic)
    engine.drafters |= {"rest": RestDrafter({}), "suffix": SuffixDrafter()}
    engine.target = dictated = Dictated(engine.target)  # type: ignore[assignment]
    before = "\n".join(Path(textwrap.__file__).read_text("utf-8").splitlines()[:LINES]) + "\n"
    answer = re.sub(rf"\b{OLD}\b", NEW, before)
    prompt = engine.tokenizer.encode(f"Rename {OLD} to {NEW}:\n```python\n{before}```\n```python\n")
    expected = {"none": (), "before": tuple(engine.tokenizer.encode(before))}
    expected |= {"right": tuple(engine.tokenizer.encode(answer)), "wrong": expected["before"][::-1]}
    dictated.text = [*prompt, *expected["right"]]
    contenders = [engine.contender("off")] + [
        engine.contender(method, f"{method}, {name}", prediction=prediction)
        for method in methods or engine.drafters
        for name, prediction in expected.items()
    ]
    runs = _rounds(contenders, prompt, len(expected["right"]), rounds)
    return {
        "storage": storage, "arithmetic": arithmetic, "lines": LINES, "prompt tokens": len(prompt),
        "tokens": len(expected["right"]), "occurrences": len(re.findall(rf"\b{OLD}\b", before)), **_summary(runs),
    }  # fmt: skip


def _rounds(contenders: Sequence[Kolm], prompt: Sequence[int], tokens: int, rounds: int) -> dict[str, list[Run]]:
    """All of them in an order of each round's own; the first round, which compiles and learns, does not count."""
    dice, runs = random.Random(0), {contender.name: list[Run]() for contender in contenders}
    for number in range(rounds + 1):
        for contender in dice.sample(contenders, len(contenders)):
            run = contender.run([prompt], 0.0, tokens)
            if number:
                runs[contender.name].append(run)
    (digests,) = {run.digests for each in runs.values() for run in each}
    assert digests, "every stream is that of off"
    return runs


def _summary(runs: dict[str, list[Run]]) -> dict[str, Any]:
    off = runs["kolm off"]
    return {
        "off, ms a token": round(median(1e3 * run.decode_seconds / len(run.tokens[0]) for run in off), 2),
        "methods": {
            name: {
                "decoding over off": _ratio([run.decode_seconds for run in off], [run.decode_seconds for run in found]),
                "request over off": _ratio([run.seconds for run in off], [run.seconds for run in found]),
                "tokens a pass": round(found[0].mean_acceptance_length, 2),
            }
            for name, found in runs.items()
        },
    }


def _ratio(off: Sequence[float], own: Sequence[float]) -> float:
    return round(median(a / b for a, b in zip(off, own, strict=True)), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", nargs="*", default=[PUBLISHED], help="q4_1, as published; q8_0, bfloat16, float32")
    parser.add_argument("--arithmetic", nargs="*", default=["float32"], choices=ARITHMETICS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--methods", nargs="*", default=[], help="of lookahead, eagle3, rest, suffix; all unless told")
    arguments = parser.parse_args()
    results = [
        measure(storage, arithmetic, arguments.rounds, arguments.methods)
        for storage, arithmetic in itertools.product(arguments.storage, arguments.arithmetic)
        if arithmetic == "float32" or storage in QUANTISED
    ]
    (RESULTS / "predicted.json").write_text(json.dumps({"machine": machine(), "predicted": results}, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
