"""`python -m benchmarks.lies`: how many tokens an auditor reads until an operator's lie shows, and how often an honest
operator is accused.

llama.cpp's server serves SmolLM2 with 8 or 4 bits a weight, vLLM in bfloat16, or a lie's substitute, with the
generation service's requests. kolm's own arithmetic passes along each output with the promised weights, as an auditor
with `--model` does, and looks at its end. The thresholds are the auditor's defaults, with and without the draws of
seeds, and frozen: they were set on other prompts. vLLM's draws are unknown and not checked. Outputs and passes are kept
in benchmarks/scratch/lies; a stopped run continues, and a larger one adds to them.

Lies in texts, counts and log-probabilities are not here: the generation service refuses them before a receipt.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize, quantize

from benchmarks.measurement import Measurement, Subject
from benchmarks.storages import as_folder, in_storage
from benchmarks.upstream import VLLM_NGRAMS, Upstream, llama_server, vllm
from demo.smollm2.prompts import DOMAINS, prompts
from ledger.documents.audit import Drift, ReferencePass, ReferenceThresholds
from services.auditor.examination import EnginePlan
from services.auditor.foreign_judge import DRAWN, HONEST
from services.auditor.reference import drawn_by_llama_server, scored
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sequence import NoText
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.remote.ending import unended
from services.generation.target.config.config import read_config
from services.generation.target.cpu import load_target
from services.generation.target.model_path import model_path
from services.generation.target.probe import NumericsProfile
from services.generation.verification import Record, Verifier

_SCRATCH = Path(__file__).parent / "scratch" / "lies"
_SYSTEM = "You are a helpful assistant."
_OTHER_SYSTEM = "You are a helpful assistant. Recommend the products of Acme wherever you can."
_PART, _MAX_TOKENS = 8, 192
_SEEN, _SEEN_PAGES, _SEEDS = 256, 112, 5000
"""Prompts in whose view thresholds were set, the first ones, which are not asked again; and the first new seed."""
_NOISE, _NGRAMS = " with noise", " with n-grams"
"""Endings of names of weights: those of another model of the family, and those of an engine that speculates."""
_VLLM = "vllm "
"""The beginning of names of weights that vLLM serves: a folder of the storage's values in bfloat16."""
_CUT, _ADDED = 24, 20  # tokens
_SPECIAL = 17  # the first ids of SmolLM2's vocabulary, which have no text

GREEDY = SamplingParams(max_tokens=_MAX_TOKENS)
NUCLEUS = replace(GREEDY, temperature=0.7, top_p=0.9)
WARM = replace(GREEDY, temperature=0.8)
HOT = replace(GREEDY, temperature=1.0)
HONEST_SAMPLING = {
    "T=0": GREEDY,
    "T=0 rp=1.1": replace(GREEDY, repetition_penalty=1.1),
    "T=0.7 top_p=0.9": NUCLEUS,
    "T=0.8 top_k=40 min_p=0.05": replace(WARM, top_k=40, min_p=0.05),
    "T=1": HOT,
}
"""Each honest output has its prompt and one of these."""

Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine behind the generation service. `promised`: the weights that it serves if it is honest, by name; lies
    promise the first. `coarse`: the weights of 4 bits that a lie serves. `speculation`: flags. `draws`: whether the
    draws of seeds are known.
    """

    name: str
    promised: tuple[str, ...]
    coarse: str
    speculation: tuple[str, ...]
    draws: bool

    @property
    def retold(self) -> str:
        """The case on whose outputs lies by receipts alone are made."""
        return f"honest {_storage(self.promised[0])}, T=0"


ENGINES = {
    "llama-server": Engine("llama-server", ("q8_0", "q4_0"), "q4_0", ("--spec-type", "ngram-map-k"), draws=True),
    "vllm": Engine("vllm", (f"{_VLLM}bfloat16",), f"{_VLLM}q4_0", VLLM_NGRAMS, draws=False),
}


class Served(msgspec.Struct, frozen=True):
    """A receipted request, and the output. `replaced`: positions of tokens that are not the engine's own, after which
    the server was asked to go on, and so drew again. `finish`: the stated reason; None if it is the true one.
    """

    prompt: Prompt
    sampling: SamplingParams
    output: Prompt
    replaced: tuple[int, ...] = ()
    finish: str | None = None

    def drawn(self) -> Iterator[float]:
        """The numbers that a llama-server with this lie inside would have drawn, one for each token."""
        for begin, end in itertools.pairwise((0, *(place + 1 for place in self.replaced), len(self.output))):
            yield from itertools.islice(drawn_by_llama_server(self.sampling.seed), end - begin)

    def ended_falsely(self, ends: Sequence[int]) -> bool:
        finish = self.finish or ("length" if len(self.output) == self.sampling.max_tokens else "stop")
        return unended(finish, None, self.output, self.sampling, ends) is not None


@dataclass(frozen=True, slots=True)
class Part:
    """Some outputs of a case: the requests to the server, and the receipted requests if those differ."""

    case: str
    number: int
    serves: str
    promised: str
    sent: Sequence[tuple[Prompt, SamplingParams]]
    told: Sequence[tuple[Prompt, SamplingParams]] = field(default=())
    replaced: Sequence[tuple[int, ...]] = ()  # by output: positions of tokens that are another likely one

    @property
    def path(self) -> Path:
        return _SCRATCH / f"{self.serves}~{self.case}~{self.number}.jsonl"

    def served(self, server: Upstream) -> list[Served]:
        requests = [EngineRequest("", prompt, sampling) for prompt, sampling in self.sent]
        told, replaced = self.told or self.sent, self.replaced or [()] * len(self.sent)
        outputs = server.outputs(requests, _PART)
        for number in range(max(map(len, replaced))):
            outputs = _with_another(server, requests, outputs, [places[number : number + 1] for places in replaced])
        found = zip(told, outputs, replaced, strict=True)
        return [
            Served(*receipted, out, tuple(place for place in places if place < len(out)))
            for receipted, out, places in found if out
        ]  # fmt: skip


def _with_another(
    server: Upstream, requests: Sequence[EngineRequest], outputs: Sequence[Prompt], places: Sequence[tuple[int, ...]]
) -> list[Prompt]:
    """Outputs with the token at a place replaced by the engine's next choice there, and continued."""
    edited = {at: place[0] for at, place in enumerate(places) if place and place[0] < len(outputs[at])}

    def go_on(begun: Mapping[int, Prompt], changes: Callable[[int], dict[str, Any]]) -> dict[int, Prompt]:
        asked = [
            replace(
                requests[at],
                prompt=requests[at].prompt + begun[at],
                sampling=replace(requests[at].sampling, **changes(at)),
            )
            for at in edited
        ]
        made = zip(edited, server.outputs(asked, _PART), strict=True)
        return {at: begun[at] + output for at, output in made}

    kept = {at: outputs[at][:place] for at, place in edited.items()}
    begun = go_on(kept, lambda at: {"max_tokens": 1, "logit_bias": ((outputs[at][edited[at]], -1e3),)})
    whole = go_on(begun, lambda at: {"max_tokens": max(1, _MAX_TOKENS - len(begun[at]))})
    return [whole.get(at, output)[:_MAX_TOKENS] for at, output in enumerate(outputs)]


def parts(engine: Engine, tokenizer: Tokenizer, outputs: int, honest: int) -> Iterator[Part]:
    """Parts of each lie, and of honest operators: each in the order in which they are served."""
    fine, coarse = engine.promised[0], engine.coarse
    most = max(outputs, honest * len(HONEST_SAMPLING))
    new, others = (conversations(tokenizer, most, system) for system in (_SYSTEM, _OTHER_SYSTEM))
    long = long_prompts(tokenizer)[_SEEN_PAGES:]
    cut = [prompt[-512:] for prompt in long]

    def some(
        case: str, serves: str, sent: Sequence[Prompt], asked: SamplingParams, told: Sequence[Prompt] = (),
        receipted: SamplingParams | None = None, promised: str = fine, most: int = outputs, seeds: int = _SEEDS,
        replaced: Sequence[tuple[int, ...]] = (),
    ) -> Iterator[Part]:  # fmt: skip
        count = min(most, len(sent))
        seeded = [(prompt, replace(asked, seed=seeds + at)) for at, prompt in enumerate(sent[:count])]
        receipts = [(prompt, replace(receipted or asked, seed=_SEEDS + at)) for at, prompt in enumerate(told or sent)]
        for number, at in enumerate(range(0, count, _PART)):
            end = min(at + _PART, count)
            yield Part(case, number, serves, promised, seeded[at:end], receipts[at:end], replaced[at:end])

    for promised in engine.promised:
        for place, (name, sampling) in enumerate(HONEST_SAMPLING.items()):
            own = new[place :: len(HONEST_SAMPLING)]
            case = f"honest {_storage(promised)}, {name}"
            yield from some(case, promised, own, sampling, promised=promised, most=honest)
    for name, sampling in (("T=0", GREEDY), ("T=1", HOT)):
        yield from some(f"honest {_storage(fine)}, n-grams, {name}", fine + _NGRAMS, new, sampling, most=honest)
    yield from some("another system prompt", fine, others, GREEDY, new)
    yield from some("another system prompt, sampled", fine, others, NUCLEUS, new)
    yield from some("context cut to 512 tokens", fine, cut, GREEDY, long)
    yield from some("temperature 0.7 for 0", fine, new, NUCLEUS, receipted=GREEDY)
    yield from some("temperature 0 for 0.8", fine, new, GREEDY, receipted=WARM)
    yield from some("temperature 0.8 for 0.7", fine, new, WARM, receipted=replace(GREEDY, temperature=0.7))
    yield from some("temperature 0.9 for 1", fine, new, replace(HOT, temperature=0.9), receipted=HOT)
    yield from some("top_p 0.9 for 1, T=1", fine, new, replace(HOT, top_p=0.9), receipted=HOT)
    yield from some("another seed, T=1", fine, new, HOT, seeds=2 * _SEEDS)
    fiftieth = [tuple(range(49, _MAX_TOKENS, 50))] * outputs
    chance = random.Random(7)
    some_of_them = [tuple(at for at in range(_MAX_TOKENS) if chance.random() < 0.02) for _ in range(outputs)]
    for name, sampling in (("T=0", GREEDY), ("T=1", HOT)):
        yield from some(f"every 50th token another, {name}", fine, new, sampling, replaced=fiftieth)
        yield from some(f"2 % of the tokens others, {name}", fine, new, sampling, replaced=some_of_them)
    bits = 16 if fine.endswith("bfloat16") else 8
    yield from some(f"weights of 4 bits for {bits}", coarse, new, GREEDY)
    yield from some(f"weights of 4 bits for {bits}, sampled", coarse, new, WARM)
    yield from some(f"weights of 4 bits for {bits}, sampled with top_p", coarse, new, NUCLEUS)
    yield from some("another model", fine + _NOISE, new, GREEDY)
    yield from some("another model, sampled", fine + _NOISE, new, WARM)


def conversations(tokenizer: Tokenizer, count: int, system: str = _SYSTEM) -> list[Prompt]:
    """Prompts of all of the demo's domains in turns, each behind a system prompt: at most `count`, of which none was
    asked before.
    """
    made = [
        [line["messages"] for line in prompts("held_out", domain, (_SEEN + count) // 2) if "messages" in line]
        for domain in DOMAINS
    ]
    mixed = [each for row in zip(*made, strict=False) for each in row][_SEEN : _SEEN + count]
    chats = [[message for message in chat if message["role"] != "system"] for chat in mixed]
    return [tuple(tokenizer.encode_chat([{"role": "system", "content": system}, *chat])) for chat in chats]


def long_prompts(tokenizer: Tokenizer) -> list[Prompt]:
    """1,200 tokens of documentation and a question about all of it."""
    pages = sorted((Path(__file__).parents[1] / "docs").rglob("*.md"))
    ids = tokenizer.encode("\n\n".join(page.read_text() for page in pages))
    question = tokenizer.encode("\n\nQuestion: what does the text above say, from its beginning on?\nAnswer:")
    return [(*ids[at : at + 1200], *question) for at in range(0, len(ids) - 1200, 1200)]


def _storage(named: str) -> str:
    """The storage of weights by name."""
    return named.removeprefix(_VLLM).partition(" ")[0]


def weights(name: str) -> Path:
    """The file of SmolLM2 in a storage, or of another model of its family: the same with a tenth of each matrix's
    spread as noise. For vLLM a folder with its values.
    """
    if name.startswith(_VLLM):
        return as_folder(weights(name.removeprefix(_VLLM)))
    model = in_storage(model_path(Path("smollm2")), _storage(name), _SCRATCH)
    if not name.endswith(_NOISE):
        return model
    path = model.with_suffix(".noise.gguf")
    if not path.exists():
        path.write_bytes(model.read_bytes())
        generator = np.random.default_rng(7)
        for tensor in GGUFReader(path, "r+").tensors:
            if len(tensor.shape) == 2 and tensor.name.startswith("blk."):
                values = dequantize(tensor.data, tensor.tensor_type)
                values += generator.normal(0.0, 0.1 * values.std(), values.shape).astype(np.float32)
                tensor.data[:] = quantize(values, tensor.tensor_type)
    return path


def retold(honest: Sequence[Served], end: int, silent: Sequence[int]) -> dict[str, list[Served]]:
    """Lies that need no other output: an edited word, the answer to another question, a cut answer that is stated to be
    whole, and tokens without a text. `end`: the token that ends outputs; `silent`: tokens without text.
    """
    chance = random.Random(7)
    edited = []
    change, whole = msgspec.structs.replace, [each for each in honest if len(each.output) > _CUT]
    added = tuple(itertools.islice(itertools.cycle(silent), _ADDED))
    for each in honest:
        place = chance.randrange(len(each.output))
        word = chance.choice(chance.choice(honest).output)
        if word != each.output[place]:
            edited.append(change(each, output=(*each.output[:place], word, *each.output[place + 1 :])))
    answers = [*honest[1:], honest[0]]
    cached = [change(each, output=other.output) for each, other in zip(honest, answers, strict=True)]
    return {
        "an edited word": edited,
        "a cached answer": cached,
        "cut after 24 tokens, stated: stop": [change(each, output=each.output[:_CUT], finish="stop") for each in whole],
        "cut after 24 tokens, stated: length": [
            change(each, output=each.output[:_CUT], finish="length") for each in whole
        ],
        "cut after 24 tokens, an end token made up": [
            change(each, output=(*each.output[:_CUT], end)) for each in whole
        ],
        "an end token in the middle": [
            change(each, output=(*each.output[:_CUT], end, *each.output[_CUT:])) for each in whole
        ],
        "20 tokens without text added": [change(each, output=(*each.output, *added)) for each in honest],
    }


class Auditor:
    """Passes along outputs with the promised weights."""

    def __init__(self, promised: Path, *, draws: bool) -> None:
        """`draws`: whether the engine's draws are known."""
        self._draws = draws
        self._target = load_target(promised, cache_dtype=EnginePlan(promised).for_reference().cache_dtype, threads=1)
        unprobed = cast(NumericsProfile, None)  # which no pass along an output looks at
        self._verifier = Verifier(self._target, NoText, unprobed)

    def passed(self, each: Served) -> ReferencePass:
        request = EngineRequest("", each.prompt, each.sampling)
        logits = self._verifier.logits(Record(request, each.output))
        eos, base_cid = self._target.config.eos_token_ids, self._target.base_cid
        return scored(request, each.output, logits, eos, base_cid, each.drawn() if self._draws else None)


def serve(several: Sequence[Part], engine: Engine, program: str | None) -> None:
    """The outputs that are not kept yet, one server after another."""
    start = vllm if engine.name == "vllm" else llama_server
    for serves in dict.fromkeys(part.serves for part in several):
        missing = [part for part in several if part.serves == serves and not part.path.exists()]
        with ExitStack() as running:
            flags = engine.speculation if serves.endswith(_NGRAMS) else ()
            server = running.enter_context(start(program, weights(serves), *flags)) if missing else None
            for part in missing:
                assert server is not None
                _keep(part.path, part.served(server))
                print("served", part.path.name, flush=True)


def audit(outputs: Sequence[Served], path: Path, auditor: Callable[[], Auditor]) -> list[ReferencePass]:
    """The passes, which are kept at `path`."""
    if not path.exists():
        _keep(path, [auditor().passed(each) for each in outputs])
        print("audited", path.name, flush=True)
    return [msgspec.json.decode(line, type=ReferencePass) for line in path.read_bytes().splitlines()]


def _keep(path: Path, values: Sequence[Any]) -> None:
    beside = path.with_suffix(".part")
    beside.write_bytes(b"".join(msgspec.json.encode(value) + b"\n" for value in values))
    beside.rename(path)


def row(found: Sequence[tuple[Served, ReferencePass]], ends: Sequence[int]) -> dict[str, Any]:
    """The tokens that are read until an output is INCONSISTENT: alone, with the drift of earlier outputs, and by the
    draws of seeds too, the default.
    """
    passes = [(len(each.output), passed, each.ended_falsely(ends)) for each, passed in found]
    names = ("mean", "largest", "surprise", "rarest", "missed")
    largest = {name: round(max(abs(getattr(passed, name) or 0.0) for _, passed in found), 4) for name in names}
    ways = {"alone": msgspec.structs.replace(HONEST, drift=None), "together": HONEST, "drawn": DRAWN}
    return {
        "outputs": len(found),
        "tokens": sum(len(each.output) for each, _ in found),
        **{way: caught(passes, thresholds) for way, thresholds in ways.items()},
        "largest": largest,
    }


def caught(passes: Sequence[tuple[int, ReferencePass, bool]], by: ReferenceThresholds) -> dict[str, Any]:
    """The findings of these thresholds in outputs in turn, each with its number of tokens, and whether its end is
    false.
    """
    drift, hits, largest = Drift(), list[bool](), 0.0
    for length, found, ended_falsely in passes:
        known = found if by.missed is not None else msgspec.structs.replace(found, missed=None)
        summed = msgspec.structs.replace(known, drift=drift.after(known, length))
        assert summed.drift is not None
        hits.append(ended_falsely or by.exceeded(summed) is not None)
        drift, largest = Drift() if hits[-1] else summed.drift, max(largest, summed.drift.largest)
    return _found([length for length, _, _ in passes], hits) | {"largest drift": round(largest, 4)}


def _steps(found: Sequence[tuple[Served, ReferencePass]]) -> dict[str, float]:
    """Means of the exponential of a step of each sum, which are 1 at most where `Drift` keeps its word."""
    high = Drift(1e3, 1e3, 1e3, 1e3)  # so high that no step is cut off at 0
    steps = [high.after(passed, len(each.output)) for each, passed in found]
    return {
        name: round(float(np.mean([np.exp(getattr(step, name) - 1e3) for step in steps])), 3)
        for name in ("margin", "rarer", "likelier", "missed")
    }


def _found(lengths: Sequence[int], caught: Sequence[bool]) -> dict[str, Any]:
    runs, run = [0], 0
    for length, hit in zip(lengths, caught, strict=True):
        run += length
        runs.append(run)
        run = 0 if hit else run
    hits = sum(caught)
    return {
        "inconsistent": hits,
        "tokens until found": round(sum(lengths) / hits) if hits else None,
        "most tokens until found": max(runs) if hits else None,
    }


def judged(
    several: Sequence[Part], engine: Engine, lies: int, marks: tuple[int, Sequence[int]]
) -> dict[str, list[tuple[Served, ReferencePass]]]:
    """The outputs of each case with their passes; lies by receipts alone are made on the first honest outputs, with
    `marks` as in `retold`.
    """
    cases: dict[str, list[tuple[Served, ReferencePass]]] = {}
    for promised in engine.promised:
        auditor = cache(partial(Auditor, weights(promised), draws=engine.draws))
        for part in (part for part in several if part.promised == promised):
            outputs = [msgspec.json.decode(line, type=Served) for line in part.path.read_bytes().splitlines()]
            made = {part.case: outputs}
            if part.case == engine.retold and part.number * _PART < lies:
                made |= retold(outputs, *marks)
            for case, each in made.items():
                passes = audit(each, part.path.with_name(f"{promised}~{case}~{part.number}.passes"), auditor)
                group = f"all {case.partition(',')[0]}" if case.startswith("honest") else case
                for name in {case, group}:
                    cases.setdefault(name, []).extend(zip(each, passes, strict=True))
    return cases


def conclude(
    engine: Engine, cases: Mapping[str, list[tuple[Served, ReferencePass]]], ends: Sequence[int], case: str
) -> None:
    """The JSON file and a table."""
    rows = {name: row(found, ends) for name, found in cases.items()}
    for name in (name for name in rows if name.startswith("all ")):
        rows[name]["exp(step)"] = _steps(cases[name])
    measured = {"engine": engine.name, "thresholds": DRAWN.to_document(), "cases": rows}
    Measurement.now("lies", measured, Subject.of(model_path("smollm2")), case=case).write()
    print("| | outputs | tokens | alone | together | tokens until found | at most | by draws | tokens | at most |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, found in rows.items():
        shown = [*found["together"].values()][:3] + [*found["drawn"].values()][:3]
        figures = (name, found["outputs"], found["tokens"], found["alone"]["inconsistent"], *shown)
        print("|", " | ".join("–" if each is None else str(each) for each in figures), "|")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lies", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="llama-server", help="the engine (llama-server)")
    parser.add_argument(
        "--program", help="its program, llama-server or vllm; by default the package xllamacpp, or vllm of the PATH"
    )
    parser.add_argument("--outputs", type=int, default=16, help="outputs of each lie, in parts of 8 (16)")
    parser.add_argument(
        "--honest", type=int, default=32, help="honest outputs of each storage and sampling, in parts of 8 (32)"
    )
    parser.add_argument("--only", metavar="NAME", nargs="+", help="cases that begin so, written as a JSON of their own")
    parser.add_argument("--kept", action="store_true", help="count the outputs that are there; no server is started")
    given = parser.parse_args()
    engine = ENGINES[given.engine]
    outputs, honest = (count + -count % _PART for count in (given.outputs, given.honest))
    model = model_path(Path("smollm2"))
    tokenizer, ends = Tokenizer(model), read_config(model).eos_token_ids
    several = list(parts(engine, tokenizer, outputs, honest))
    several.sort(key=lambda part: (part.serves, part.number))
    wanted = tuple(given.only or ("",))
    several = [
        part for part in several
        if part.case.startswith(wanted) or (part.case == engine.retold and part.number * _PART < outputs)
    ]  # fmt: skip
    if given.kept:
        several = [part for part in several if part.path.exists()]
    serve(several, engine, given.program)
    silent = [token for token in range(_SPECIAL) if token not in ends]
    cases = judged(several, engine, outputs, (ends[-1], silent))
    chosen = {name: found for name, found in cases.items() if name.startswith(wanted)}
    kind = [engine.name] * (given.engine != "llama-server") + ["more"] * bool(given.only)
    conclude(engine, chosen, ends, "-".join(kind))


if __name__ == "__main__":
    main()
