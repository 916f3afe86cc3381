"""`python -m benchmarks.structured`: 300 schemas, every method beside off under the same schema, T = 0 and 0.7.

The schemas are drawn from a seed, in the style of public ones: nested, enums, formats, bounds, unions, recursion. All
answers of a method are decoded side by side and held against those of off; finished ones are read by `jsonschema`.
Then some schemas take turns alone, for the time that a method takes beside off, and for that of a token's grammar.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import jsonschema
from rich.console import Console
from rich.progress import track

from benchmarks.engines import KolmEngine
from benchmarks.machine import RESULTS, machine
from services.generation.drafting.suffix import SuffixDrafter
from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.events import Event, Finished, Outcome
from services.generation.engine.request import EngineRequest, Grammar, InvalidRequest, SamplingParams, StructuredOutputs
from services.generation.engine.sampling.processors import GrammarMask
from services.generation.engine.text.grammar_compiler import GrammarCompiler
from services.generation.target.model_path import model_path

Schema = dict[str, Any]

_NAMES = (
    "id", "name", "title", "status", "kind", "owner", "email", "created_at", "updated_at", "due", "price", "amount",
    "currency", "quantity", "city", "street", "country", "code", "label", "score", "rating", "tags", "notes",
    "summary", "description", "address", "contact", "items", "steps", "reason", "priority", "enabled", "version",
    "host", "port", "path", "language", "author", "publisher", "pages", "weight", "height", "color", "shape",
    "latitude", "longitude", "start", "end",
)  # fmt: skip
_WORDS = (
    "open", "closed", "pending", "draft", "low", "medium", "high", "red", "green", "blue", "euro", "dollar",
    "small", "large", "public", "private",
)  # fmt: skip
_STRING_FORMATS = ("date", "date-time", "time", "email", "uuid", "ipv4", "hostname", "duration")
_PATTERNS = ("[A-Z]{2,3}-[0-9]{3,5}", "[a-z]+(_[a-z]+){0,2}", "#[0-9a-f]{6}", "v[0-9]+\\.[0-9]+")
_DEEPEST = 3


def schemas(count: int, seed: int = 0) -> list[Schema]:
    """So many, each an object."""
    return [_Drawn(random.Random(seed * 1_000_003 + number)).schema() for number in range(count)]


class _Drawn:
    """One schema, with definitions of its own."""

    def __init__(self, dice: random.Random) -> None:
        self._dice, self._defs = dice, dict[str, Schema]()

    def schema(self) -> Schema:
        if self._dice.random() < 0.3:
            self._defs["thing"] = self._object(_DEEPEST - 1)
        if self._dice.random() < 0.2:  # a list, by recursion
            members = {"value": self._leaf(), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}
            required = ["value", "next"]
            self._defs["node"] = {
                "type": "object", "properties": members, "required": required, "additionalProperties": False,
            }  # fmt: skip
        found = self._object(0)
        return found | {"$defs": self._defs} if self._defs else found

    def _object(self, depth: int) -> Schema:
        dice = self._dice
        names = dice.sample(_NAMES, dice.randrange(2, 6 if depth == 0 else 4))
        required = [name for name in names if dice.random() < 0.85]
        return {
            "type": "object",
            "properties": {name: self._value(depth + 1) for name in names},
            "required": required or names[:1],
            "additionalProperties": False,
        }

    def _value(self, depth: int) -> Schema:
        if depth >= _DEEPEST or self._dice.random() < 0.6:
            return self._leaf()
        choices: list[Callable[[int], Schema]] = [self._object, self._array, self._union, self._both, self._map]
        if self._defs:
            choices += [self._reference] * 3
        return self._dice.choice(choices)(depth)

    def _leaf(self) -> Schema:
        dice = self._dice
        low = dice.randrange(-5, 50)
        return dice.choice(
            (
                {"type": "string", "maxLength": dice.randrange(5, 30)},
                {"type": "string", "minLength": 2, "maxLength": 12},
                {"enum": dice.sample(_WORDS, dice.randrange(2, 6))},
                {"const": dice.choice(_WORDS)},
                {"type": "string", "format": dice.choice(_STRING_FORMATS), "maxLength": 40},
                {"type": "string", "pattern": f"^{dice.choice(_PATTERNS)}$", "maxLength": 24},
                {"type": "integer", "minimum": low, "maximum": low + dice.choice((3, 50, 1000))},
                {"type": "number", "minimum": 0, "exclusiveMaximum": 100},
                {"type": "boolean"},
                {"type": ["string", "null"], "maxLength": 10},
                {"enum": [1, "two", None, True]},
            )
        )

    def _array(self, depth: int) -> Schema:
        if self._dice.random() < 0.3:
            return {"type": "array", "prefixItems": [self._leaf(), self._leaf()], "items": False, "minItems": 2}
        most = self._dice.randrange(1, 4)
        least = self._dice.randrange(0, most + 1)
        return {"type": "array", "items": self._value(depth + 1), "minItems": least, "maxItems": most}

    def _union(self, depth: int) -> Schema:
        return {"anyOf": [self._value(depth + 1), self._leaf()]}

    def _both(self, depth: int) -> Schema:
        first, second = self._object(depth), self._object(depth)
        shared = {**first["properties"], **second["properties"]}
        parts = [{"required": part["required"]} for part in (first, second)]
        return {"type": "object", "properties": shared, "allOf": parts, "additionalProperties": False}

    def _map(self, depth: int) -> Schema:
        return {"type": "object", "additionalProperties": self._leaf(), "minProperties": 1, "maxProperties": 2}

    def _reference(self, depth: int) -> Schema:
        return {"$ref": f"#/$defs/{self._dice.choice(list(self._defs))}"}


_log = logging.getLogger(__name__)

HEAD, STORE = Path("demo/smollm2/head"), Path("demo/smollm2/store")
TEMPERATURES = (0.0, 0.7)
_TOGETHER = 12  # sequences side by side
_PART = 30  # schemas between two lines of the log
_FORMATS = jsonschema.FormatChecker()


def _is_time(value: object) -> bool:
    """A time of RFC 3339, with its zone, a small z too, and any number of digits: jsonschema's own check knows none."""
    if isinstance(value, str):
        dt.time.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value.upper()))
    return True


_FORMATS.checks("time", raises=ValueError)(_is_time)


class Bench:
    """The engine with its methods, and the grammars of all schemas."""

    def __init__(self, count: int, max_tokens: int) -> None:
        self.engine = KolmEngine(model_path("smollm2"), HEAD, store=STORE)
        self.engine.drafters["suffix"] = SuffixDrafter()
        self.methods = ("off", *self.engine.drafters)
        self._max_tokens = max_tokens
        tokenizer, config = self.engine.tokenizer, self.engine.target.config
        compiler = GrammarCompiler(tokenizer.fast.to_str, config.vocab_size, config.eos_token_ids)
        self.refused: Counter[str] = Counter()
        self.compile_seconds: list[float] = []
        self.schemas: list[Schema] = []
        self.grammars: list[Grammar] = []
        drawn = iter(schemas(2 * count))
        while len(self.schemas) < count:
            schema = next(drawn)
            started = time.perf_counter()
            try:
                self.grammars.append(compiler.compile(StructuredOutputs("json", json.dumps(schema))))
                self.schemas.append(schema)
                self.compile_seconds.append(time.perf_counter() - started)
            except InvalidRequest as error:
                self.refused[error.message.partition(": ")[2][:60]] += 1

    def request(self, number: int, method: str, temperature: float) -> EngineRequest:
        names = ", ".join(self.schemas[number]["properties"])
        chat = [{"role": "user", "content": f"Make up an example record as JSON, with the members {names}."}]
        grammar = self.grammars[number]
        sampling = SamplingParams(
            temperature=temperature, seed=number, max_tokens=self._max_tokens, structured_outputs=grammar.source
        )
        prompt = tuple(self.engine.tokenizer.encode_chat(chat))
        return EngineRequest(str(number), prompt, sampling, method=method, grammar=grammar)

    def run(self, numbers: Sequence[int], method: str, temperature: float, together: int) -> dict[int, Outcome]:
        engine, found = self.engine, dict[int, Outcome]()

        def sink(event: Event) -> None:
            if isinstance(event, Finished):
                found[int(event.request_id)] = event.outcome

        settings = EngineSettings(max_sequences=together, max_waiting=len(numbers))
        core = EngineCore(
            engine.target, engine.drafters, engine.tokenizer.stream, engine.cost, settings, time.perf_counter
        )
        for number in numbers:
            core.add(self.request(number, method, temperature), sink)
        while not core.idle:
            core.step()
        return found


def compare(bench: Bench) -> dict[str, Any]:
    """Every schema by every method: equal to off, and what `jsonschema` says of what is finished."""
    found = Compared({method: [0, 0] for method in bench.methods})
    parts = [range(first, min(first + _PART, len(bench.schemas))) for first in range(0, len(bench.schemas), _PART)]
    for numbers in track(parts, "side by side"):
        for temperature in TEMPERATURES:
            off = bench.run(numbers, "off", temperature, _TOGETHER)
            for method in bench.methods:
                outcomes = off if method == "off" else bench.run(numbers, method, temperature, _TOGETHER)
                for number, outcome in outcomes.items():
                    found.add(bench.schemas[number], method, outcome, off[number])
        _log.info("%d schemas: %s", numbers[-1] + 1, json.dumps(found.summary()))
    return found.summary()


@dataclass
class Compared:
    """A method's answers compared with those of off."""

    passes: dict[str, list[int]]  # by method: tokens, passes
    compared: int = 0
    equal: int = 0
    valid: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, schema: Schema, method: str, outcome: Outcome, off: Outcome) -> None:
        self.passes[method][0] += len(outcome.token_ids)
        self.passes[method][1] += outcome.metrics.target_passes
        self.compared += 1
        self.equal += (outcome.token_ids, outcome.stream_digest) == (off.token_ids, off.stream_digest)
        self.ends[outcome.finish_reason] += 1
        if outcome.finish_reason == "stop":
            problem = fault(schema, outcome.text)
            self.valid += problem is None
            self.problems += [] if problem is None else [problem]

    def summary(self) -> dict[str, Any]:
        lengths = {method: round(tokens / max(passes, 1), 2) for method, (tokens, passes) in self.passes.items()}
        return {
            "compared": self.compared, "equal to off": self.equal, "ended": dict(self.ends), "valid": self.valid,
            "problems": self.problems[:20], "tokens a pass": lengths,
        }  # fmt: skip


def fault(schema: Schema, text: str) -> str | None:
    """The fault that `jsonschema` finds in an answer; None where there is none."""
    try:
        jsonschema.Draft202012Validator(schema, format_checker=_FORMATS).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{getattr(error, 'message', error)!s:.200}"
    return None


def times(bench: Bench, count: int) -> dict[str, Any]:
    """Schemas alone, methods in an order of each turn's own: off's seconds over a method's, of decoding; grammars."""
    spent, dice = list[float](), random.Random(0)
    seconds: dict[str, list[float]] = {method: [] for method in bench.methods}
    plain = {name: getattr(GrammarMask, name) for name in ("allows", "allowed", "accept")}
    since = 0.0  # the last token

    def timed(name: str) -> Any:
        def call(mask: GrammarMask, *asked: int) -> Any:
            nonlocal since
            started = time.thread_time()
            told = plain[name](mask, *asked)
            since += time.thread_time() - started
            if name == "accept":
                spent.append(since)
                since = 0.0
            return told

        return call

    for name in plain:
        setattr(GrammarMask, name, timed(name))
    try:
        for number in track(range(count), "alone"):
            for temperature in TEMPERATURES:
                for method in dice.sample(bench.methods, len(bench.methods)):
                    outcome = bench.run([number], method, temperature, 1)[number]
                    seconds[method].append(outcome.metrics.decode_seconds)
    finally:
        for name, own in plain.items():
            setattr(GrammarMask, name, own)
    off = seconds["off"]
    cuts = quantiles(spent, n=100)
    return {
        "turns": len(off),
        "over off": {
            method: {
                "median": round(median(a / b for a, b in zip(off, own, strict=True) if b), 2),
                "in all": round(sum(off) / sum(own), 2),
            }
            for method, own in seconds.items()
        },
        "grammar, milliseconds of CPU a token": {
            "median": round(1e3 * median(spent), 4), "p99": round(1e3 * cuts[98], 3),
            "largest": round(1e3 * max(spent), 2), "tokens": len(spent),
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--alone", type=int, default=30, help="schemas whose requests are timed, one at a time")
    parser.add_argument("--max-tokens", type=int, default=128)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    bench = Bench(arguments.schemas, arguments.max_tokens)
    found = {
        "schemas": len(bench.schemas),
        "refused beside them": dict(bench.refused),
        "compilation, milliseconds": {
            "median": round(1e3 * median(bench.compile_seconds), 2),
            "largest": round(1e3 * max(bench.compile_seconds[1:]), 1),
        },
        "side by side": compare(bench),
        "alone": times(bench, min(arguments.alone, len(bench.schemas))),
    }
    (RESULTS / "structured.json").write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    Console().print_json(data=found)


if __name__ == "__main__":
    main()
