"""`python -m benchmarks.lies`: how many tokens an auditor reads until an operator's lie shows, and how often an honest
operator is accused.

llama.cpp serves SmolLM2 with 8 bits a weight (or what the lie puts in its place) on real text. kolm's own arithmetic
passes along each output with the weights that were promised, exactly as `kolm audit run --model` does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize, quantize

from benchmarks.machine import RESULTS, machine
from benchmarks.real import in_storage
from benchmarks.specbench.questions import OWN, load_questions
from ledger.documents.audit import ReferencePass
from services.auditor.foreign import HONEST
from services.auditor.reference import scored
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sequence import NoText
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.cpu import load_target
from services.generation.target.model_path import model_path
from services.generation.target.probe import NumericsProfile
from services.generation.verification import Record, Verifier

_SCRATCH = Path(__file__).parent / "scratch" / "lies"
_SYSTEM = "You are a helpful assistant."
_OTHER_SYSTEM = "You are a helpful assistant. Recommend the products of Acme wherever you can."
_SLOTS = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as its receipt states it."""

    prompt: tuple[int, ...]
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Served:
    asked: Asked
    output: tuple[int, ...]


def requests(tokenizer: Tokenizer, system: str = _SYSTEM) -> list[tuple[int, ...]]:
    """Conversations, whose system prompts a lie may change, then a paragraph of documentation each."""
    turns = [question.turns[0] for kind in load_questions(OWN).values() for question in kind]
    pages = sorted((Path(__file__).parents[1] / "docs").rglob("*.md"))
    parts = [part.strip() for page in pages for part in page.read_text().split("\n\n")]
    turns += ["Explain this in your own words:\n\n" + part for part in parts if 300 < len(part) < 1500]
    chats = [[{"role": "system", "content": system}, {"role": "user", "content": turn}] for turn in turns]
    return [tuple(tokenizer.encode_chat(chat)) for chat in chats]


def long_requests(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """1,200 tokens of documentation and a question about all of it."""
    pages = sorted((Path(__file__).parents[1] / "docs").rglob("*.md"))
    ids = tokenizer.encode("\n\n".join(page.read_text() for page in pages))
    question = tokenizer.encode("\n\nQuestion: what does the text above say, from its beginning on?\nAnswer:")
    return [(*ids[at : at + 1200], *question) for at in range(0, len(ids) - 1200, 1200)]


class LlamaCpp:
    """llama.cpp's server inside this process."""

    def __init__(self, model: Path) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.n_gpu_layers = str(model), 2048 * _SLOTS, _SLOTS, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ.get("LLAMA_THREADS", "1"))
        params.verbosity, params.port = -1, 0
        self._server = xllamacpp.Server(params)
        self._url = str(self._server.listening_address)

    def answer(self, asked: Asked) -> Served:
        body = {
            "prompt": list(asked.prompt), "n_predict": asked.max_tokens, "temperature": asked.temperature,
            "seed": asked.seed, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "samplers": ["temperature"],
            "cache_prompt": False, "return_tokens": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self._url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=1800) as response:
            return Served(asked, tuple(json.loads(response.read())["tokens"]))

    def answers(self, asked: Sequence[Asked]) -> list[Served]:
        with ThreadPoolExecutor(_SLOTS) as callers:
            return list(callers.map(self.answer, asked))


def noisy(model: Path, share: float) -> Path:
    """Another model of the family: the same weights, each matrix with so much noise beside its own spread."""
    path = model.with_suffix(f".noise{share:g}.gguf")
    if not path.exists():
        path.write_bytes(model.read_bytes())
        generator = np.random.default_rng(7)
        for tensor in GGUFReader(path, "r+").tensors:
            if len(tensor.shape) == 2 and tensor.name.startswith("blk."):
                values = dequantize(tensor.data, tensor.tensor_type)
                values += generator.normal(0.0, share * values.std(), values.shape).astype(np.float32)
                tensor.data[:] = quantize(values, tensor.tensor_type)
    return path


def served(promised: Path, outputs: int, honest: int) -> Iterator[tuple[str, list[Served]]]:
    """What an honest operator serves, and one with each lie, some outputs at a time."""
    tokenizer = Tokenizer(promised)
    prompts, others = requests(tokenizer), requests(tokenizer, _OTHER_SYSTEM)
    greedy = [Asked(prompt) for prompt in prompts]
    sampled = [Asked(prompt, 0.8, 1000 + place) for place, prompt in enumerate(prompts)]
    long = [Asked(prompt) for prompt in long_requests(tokenizer)]

    def lie(
        name: str, model: Path, sent: Sequence[Asked], asked: Sequence[Asked]
    ) -> Iterator[tuple[str, list[Served]]]:
        server = LlamaCpp(model)
        for at in range(0, min(outputs, len(sent)), _SLOTS):
            made = server.answers(sent[at : at + _SLOTS])
            yield name, [replace(each, asked=told) for each, told in zip(made, asked[at:], strict=False)]

    warm = [replace(each, temperature=0.7, seed=place) for place, each in enumerate(greedy)]
    cut = [replace(each, prompt=each.prompt[-512:]) for each in long]
    coarse = in_storage(model_path(Path("smollm2")), "q4_0", _SCRATCH)
    yield from lie("weights of 4 bits for 8", coarse, greedy, greedy)
    yield from lie("weights of 4 bits for 8, sampled", coarse, sampled, sampled)
    yield from lie("another model", noisy(promised, 0.1), greedy, greedy)
    yield from lie("another system prompt", promised, [Asked(prompt) for prompt in others], greedy)
    yield from lie("temperature 0.7 for 0", promised, warm, greedy)
    yield from lie("temperature 0 for 0.8", promised, greedy, sampled)
    yield from lie("context cut to 512 tokens", promised, cut, long)
    server = LlamaCpp(promised)
    for at in range(0, honest, _SLOTS):
        yield "honest", server.answers(greedy[at : at + _SLOTS])
        yield "honest, sampled", server.answers(sampled[at : at + _SLOTS])


def told_anew(honest: Sequence[Served]) -> Iterator[tuple[str, list[Served]]]:
    """Lies that need no other output: an edited word, and an answer to another question."""
    chance = random.Random(7)
    edited = []
    for each in honest:
        place = chance.randrange(len(each.output))
        word = chance.choice(chance.choice(honest).output)
        output = (*each.output[:place], word, *each.output[place + 1 :])
        edited += [Served(each.asked, output)] if output != each.output else []
    yield "an edited word", edited
    answers = [*honest[1:], honest[0]]
    yield "a cached answer", [Served(each.asked, other.output) for each, other in zip(honest, answers, strict=True)]


class Auditor:
    """Passes along outputs with the promised weights."""

    def __init__(self, promised: Path) -> None:
        self._target = load_target(promised, threads=1)
        unprobed = cast(NumericsProfile, None)  # which no pass along an output looks at
        self._verifier = Verifier(self._target, NoText, unprobed)

    def passed(self, each: Served) -> ReferencePass:
        sampling = SamplingParams(temperature=each.asked.temperature, max_tokens=each.asked.max_tokens)
        request = EngineRequest("", each.asked.prompt, sampling)
        logits = self._verifier.logits(Record(request, each.output))
        return scored(request, each.output, logits, self._target.config.eos_token_ids, self._target.base_cid)


def row(name: str, found: Sequence[tuple[Served, ReferencePass]]) -> dict[str, Any]:
    """How many tokens are read until an output is INCONSISTENT: on average, and the most between two of them."""
    lengths = [len(each.output) for each, _ in found]
    caught = [HONEST.exceeded(passed) is not None for _, passed in found]
    runs, run = [0], 0
    for length, hit in zip(lengths, caught, strict=True):
        run += length
        runs.append(run)
        run = 0 if hit else run
    largest: dict[str, float] = {}
    for _, passed in found:
        for statistic in ("mean", "largest", "surprise", "rarest"):
            value = getattr(passed, statistic)
            largest[statistic] = max(largest.get(statistic, 0.0), abs(value or 0.0))
    hits = sum(caught)
    return {
        "outputs": len(found), "tokens": sum(lengths), "inconsistent": hits,
        "tokens until found": round(sum(lengths) / hits) if hits else None,
        "most tokens until found": max(runs) if hits else None,
        "largest": {statistic: round(value, 4) for statistic, value in largest.items()},
        "differing tokens": sum(passed.differing for _, passed in found),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lies", description=__doc__)
    parser.add_argument("--outputs", type=int, default=32, help="of each lie (32)")
    parser.add_argument("--honest", type=int, default=512, help="outputs at temperature 0, and as many at 0.8 (512)")
    parser.add_argument("--again", action="store_true", help="take the outputs of the last run")
    given = parser.parse_args()
    promised, kept = in_storage(model_path(Path("smollm2")), "q8_0", _SCRATCH), _SCRATCH / "served.jsonl"
    if not given.again:
        with kept.open("w") as file:
            for name, made in served(promised, given.outputs, given.honest):
                file.writelines(json.dumps([name, asdict(each)]) + "\n" for each in made)
                file.flush()
    lines = map(json.loads, kept.read_text().splitlines())
    cases: dict[str, list[Served]] = {}
    for name, each in lines:
        asked = Asked(**each["asked"] | {"prompt": tuple(each["asked"]["prompt"])})
        cases.setdefault(name, []).append(Served(asked, tuple(each["output"])))
    cases |= dict(told_anew(cases["honest"]))
    auditor, rows = Auditor(promised), {}
    for name, outputs in cases.items():
        rows[name] = row(name, [(each, auditor.passed(each)) for each in outputs if each.output])
        print(name, rows[name], flush=True)
    document = {"machine": machine(), "thresholds": HONEST.to_document(), "cases": rows}
    (RESULTS / "lies.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
