"""`python -m benchmarks.identity`: count the greedy outputs of several engines whose token ids speculation changes.

At each number of concurrent requests, every engine answers the same questions twice without speculation, and once with
each of its methods of speculation. Rows of other engines and methods stay in the result file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS
from benchmarks.measurement import Measurement, Subject, known_figures
from benchmarks.specbench.questions import OWN, load_questions
from benchmarks.storages import in_storage
from benchmarks.upstream import Upstream, llama_server
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.cpu import load_target
from services.generation.target.kernels.machine import cpus
from services.generation.target.model_path import model_path

Outputs = list[tuple[int, ...]]
Prompts = Sequence[tuple[int, ...]]
Decode = Callable[[Prompts, int], Outputs]
"""Takes prompts and a number of concurrent requests; returns the greedy outputs."""
OneDecode = Callable[[list[int], int], Iterable[int]]
"""Takes a prompt and the most tokens; returns the greedy tokens."""

_LLAMA = {
    "draft model": ("--spec-type", "draft-simple", "-md", "{coarse}"),
    "n-gram": ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "8"),
}


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    plain: Decode
    speculating: Mapping[str, Decode]
    at_once: tuple[int, ...] = (1,)  # the first is 1


def rows(engine: Engine, prompts: Prompts, at_once: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield a row for each method of speculation at each number of concurrent requests."""
    alone: Outputs | None = None
    for many in (many for many in engine.at_once if many in at_once):
        plain, again = engine.plain(prompts, many), engine.plain(prompts, many)
        alone = plain if alone is None else alone
        itself = {
            "plain differs from plain again": _differing(plain, again),
            "plain differs from plain alone": _differing(plain, alone),
        }
        for method, decode in engine.speculating.items():
            made = decode(prompts, many)
            changed, tokens = _differing(plain, made), sum(map(len, plain))
            yield {
                "engine": engine.name, "method": method, "at once": many, "requests": len(prompts), "tokens": tokens,
                "changed": changed, "changed per 1,000 tokens": round(1000 * changed / tokens, 2), **itself,
            }  # fmt: skip


def _differing(one: Outputs, other: Outputs) -> int:
    return sum(left != right for left, right in zip(one, other, strict=True))


def _one_by_one(decode: OneDecode, max_tokens: int, ends: Sequence[int]) -> Decode:
    """Decode prompt by prompt with a library; an output ends before its first token of `ends`."""

    def output(prompt: Sequence[int]) -> tuple[int, ...]:
        made = list(decode(list(prompt), max_tokens))
        return tuple(made[: next((at for at, token in enumerate(made) if token in ends), len(made))])

    return lambda prompts, _: [output(prompt) for prompt in prompts]


def kolm(file: Path, max_tokens: int) -> Engine:
    """kolm's methods except mtp; `block` has a head of random weights, rarely accepted, `draft` the model in 4 bits."""
    from benchmarks.engines import Kolm, KolmEngine
    from services.generation.drafting.draft_model import DraftModelDrafter
    from services.generation.drafting.lookahead import LookaheadDrafter
    from services.generation.engine.cost import StepCost
    from tests.fakes.heads import block

    engine = KolmEngine(file, Path("demo/smollm2/head"), store=Path("demo/smollm2/store"))
    draft = load_target(in_storage(file, "q4_0"))
    engine.drafters |= {
        "draft": DraftModelDrafter(draft, engine.target.config.vocab_size, StepCost(1e-6, 1e-6)),
        "suffix": LookaheadDrafter(),
        "block": block(engine.target),
    }

    def method(name: str) -> Decode:
        contender: Kolm = engine.contender(name)

        def decode(prompts: Prompts, at_once: int) -> Outputs:
            parts = [prompts[at : at + at_once] for at in range(0, len(prompts), at_once)]
            return [each for part in parts for each in contender.run(part, 0.0, max_tokens).tokens]

        return decode

    methods = {name: method(name) for name in engine.drafters}
    return Engine("kolm", method("off"), methods, (1, 8, 16))


def transformers(file: Path, max_tokens: int) -> Engine:
    assistant, ends = transformers_model(in_storage(file, "q4_0")), load_target(file).config.eos_token_ids
    choices: dict[str, dict[str, Any]] = {
        "plain": {}, "prompt lookup": {"prompt_lookup_num_tokens": 10}, "assisted": {"assistant_model": assistant},
    }  # fmt: skip
    made = {
        name: _one_by_one(transformers_decoding(file, ends, **choice), max_tokens, ends)
        for name, choice in choices.items()
    }
    return Engine(f"transformers {version('transformers')}", made.pop("plain"), made)


def openvino(_: Path, max_tokens: int) -> Engine:
    """OpenVINO on the published file, because its reader does not support the tensors of the rewritten 8-bit file."""
    file = model_path(Path("smollm2"))
    ends = load_target(file).config.eos_token_ids
    plain, lookup = (_one_by_one(openvino_decoding(file, ends, drafted), max_tokens, ends) for drafted in (0, 10))
    return Engine(f"OpenVINO GenAI {version('openvino-genai')}", plain, {"prompt lookup": lookup})


def transformers_decoding(path: Path, ends: Sequence[int], **drafting: Any) -> OneDecode:
    """`generate` in float32 on the dequantised file, with as many threads as kolm has."""
    import torch

    torch.set_num_threads(cpus())
    model = transformers_model(path)

    def decode(prompt: list[int], tokens: int) -> Iterable[int]:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=0 if ends else tokens,
            do_sample=False, eos_token_id=list(ends) or None, pad_token_id=[*ends, 0][0], **drafting,
        )  # fmt: skip
        made: list[int] = out[0, len(prompt) :].tolist()
        return made

    return decode


def transformers_model(path: Path) -> Any:
    """A dequantised model. By default transformers keeps a GGUF file's blocks packed, for optional kernels."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    whole = GgufConfig(gguf_file=path.name, dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=whole
    )
    return model.requires_grad_(False)


def openvino_decoding(path: Path, ends: Sequence[int], drafted: int = 0) -> OneDecode:
    """Greedy decoding by OpenVINO GenAI, which reads GGUF files itself; prompt lookup is set for a whole pipeline."""
    import numpy as np
    import openvino
    import openvino_genai

    properties = {"prompt_lookup": True} if drafted else {}
    pipeline = openvino_genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=cpus(), **properties)

    def decode(prompt: list[int], tokens: int) -> Iterable[int]:
        config = openvino_genai.GenerationConfig(
            max_new_tokens=tokens, do_sample=False, stop_token_ids=set(ends), eos_token_id=ends[0]
        )
        if drafted:
            config.num_assistant_tokens, config.max_ngram_size = drafted, 2
        out: Any = pipeline.generate(openvino.Tensor(np.array([prompt], np.int64)), config)
        made: list[int] = list(out.tokens[0])
        return made

    return decode


def upstreams(plain: Upstream, speculating: Mapping[str, Upstream], max_tokens: int) -> Engine:
    numbers = count()

    def decode(server: Upstream) -> Decode:
        def outputs(prompts: Prompts, at_once: int) -> Outputs:
            sampling = SamplingParams(max_tokens=max_tokens)
            asked = [EngineRequest(str(next(numbers)), prompt, sampling, reuse=False) for prompt in prompts]
            return server.outputs(asked, at_once)

        return outputs

    return Engine(plain.name, decode(plain), {name: decode(each) for name, each in speculating.items()}, (1, 8, 16))


LIBRARIES = {"kolm": kolm, "transformers": transformers, "openvino": openvino}


def main() -> None:
    given = _arguments()
    published = model_path(Path("smollm2"))
    tokenizer, file = Tokenizer(published), in_storage(published, given.storage)
    turns = [question.turns[0] for kind in zip(*load_questions(OWN).values(), strict=True) for question in kind]
    prompts = [tuple(tokenizer.encode_chat([{"role": "user", "content": turn}])) for turn in turns[: given.requests]]
    with ExitStack() as servers:
        engines = [LIBRARIES[name](file, given.max_tokens) for name in given.libraries]
        if given.llama_server:
            flags = {
                name: [each.format(coarse=in_storage(published, "q4_0")) for each in _LLAMA[name]] for name in _LLAMA
            }
            plain, *fast = (
                servers.enter_context(llama_server(given.llama_server, file, *each)) for each in ([], *flags.values())
            )
            engines.append(upstreams(plain, dict(zip(flags, fast, strict=True)), given.max_tokens))
        for engine, method, plain_url, url in given.upstream:
            made = Upstream(engine, plain_url), {method: Upstream(engine, url)}
            engines.append(upstreams(*made, given.max_tokens))
        for engine in engines:
            for row in rows(engine, prompts, given.at_once):
                print(json.dumps(row), flush=True)
                keep(row, given.out)


def keep(row: dict[str, Any], folder: Path) -> None:
    """Write the row in place of an earlier row of the same engine, method and number of concurrent requests."""
    kept = known_figures("exactness", folder) or []
    key = [row[name] for name in ("engine", "method", "at once")]
    kept = [each for each in kept if [each[name] for name in ("engine", "method", "at once")] != key]
    Measurement.now("exactness", [*kept, row], Subject.of(model_path("smollm2"))).write(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.identity", description=__doc__)
    parser.add_argument("libraries", nargs="*", choices=[*LIBRARIES, []], help="engines that are Python packages")
    parser.add_argument("--llama-server", metavar="FILE", help="the llama-server program, to measure it as well")
    parser.add_argument(
        "--upstream", nargs=4, action="append", default=[], metavar=("ENGINE", "METHOD", "PLAIN_URL", "URL"),
        help="a running vllm, sglang or llama-server; may be repeated",
    )  # fmt: skip
    parser.add_argument("--storage", default="q8_0", help="storage of the libraries' and llama.cpp's weights (q8_0)")
    parser.add_argument("--requests", type=int, default=48, help="number of questions (48)")
    parser.add_argument("--max-tokens", type=int, default=64, help="most tokens of an output (64)")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 16], help="concurrent requests (1 8 16)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON (benchmarks/results)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
