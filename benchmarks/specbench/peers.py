"""The installed peers on the same GGUF file, the same threads, greedy, one request at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GgufConfig

from benchmarks.engines import Contender, Run
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.kernels.machine import cpus

LONGEST = 8192
"""Tokens of context."""

_DRAFTED = 10
"""Tokens that prompt lookup drafts at most, in all peers; it is transformers' own advice."""


Decode = Callable[[list[int], int], Iterable[int]]
"""Greedy tokens after a prompt, at most the given number, up to the first end token; without `ends` there is none."""


class GreedyPeer:
    """A peer's plain or drafted decoding."""

    def __init__(self, name: str, ends: Iterable[int], decode: Decode) -> None:
        self.name = name
        self._ends = frozenset(ends)
        self._decode = decode

    def run(self, prompts: Sequence[Sequence[int]], temperature: float, max_tokens: int) -> Run | None:
        if temperature or len(prompts) > 1:
            return None
        start = time.perf_counter()
        tokens = self._until_end(islice(self._decode(list(prompts[0]), max_tokens), max_tokens))
        return Run(time.perf_counter() - start, [tokens])

    def _until_end(self, tokens: Iterable[int]) -> tuple[int, ...]:
        made = []
        for token in tokens:
            made.append(token)
            if token in self._ends:
                break
        return tuple(made)


def installed_peers(path: Path, ends: Sequence[int]) -> tuple[list[Contender], dict[str, str], list[str]]:
    """The peers, each one's plain decoding by its name, and which packages are not installed."""
    found: list[Contender] = []
    plain: dict[str, str] = {}
    absent = []
    for package, make in (("transformers", _transformers), ("xllamacpp", _llama), ("openvino_genai", _openvino)):
        if find_spec(package) is None:
            absent.append(package)
            continue
        pair = make(path, ends)
        found += pair
        plain |= {peer.name: pair[0].name for peer in pair}
    return found, plain, absent


def _transformers(path: Path, ends: Sequence[int]) -> list[Contender]:
    lookup = transformers_decoding(path, ends, prompt_lookup_num_tokens=_DRAFTED)
    return [
        GreedyPeer("transformers generate", ends, transformers_decoding(path, ends)),
        GreedyPeer("transformers prompt lookup", ends, lookup),
    ]


def _llama(path: Path, ends: Sequence[int]) -> list[Contender]:
    return [
        GreedyPeer("llama.cpp", ends, llama_decoding(path, ends)),
        GreedyPeer("llama.cpp n-grams", ends, llama_decoding(path, ends, "NGRAM_SIMPLE")),
    ]


def transformers_decoding(path: Path, ends: Sequence[int], **drafting: Any) -> Decode:
    """`generate` in float32 on the dequantised file, with as many threads as kolm has."""
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
    """Left to itself, transformers keeps a GGUF file's blocks packed, for kernels that it may lack."""
    whole = GgufConfig(gguf_file=path.name, dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=whole
    )
    return model.requires_grad_(False)


def llama_decoding(path: Path, ends: Sequence[int], kind: str | None = None) -> Decode:
    """llama.cpp's own server inside this process, by xllamacpp; `kind` is one of its ways of speculation. It answers
    with text, whose tokens the model's tokenizer gives.
    """
    import xllamacpp

    tokenizer = Tokenizer(path)
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.n_gpu_layers = str(path), LONGEST, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = cpus()
    params.verbosity = -1
    if kind is not None:
        types = xllamacpp.common_speculative_type
        params.speculative.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_{kind}")]
        params.speculative.draft.n_max = _DRAFTED
    server = xllamacpp.Server(params)

    def decode(prompt: list[int], tokens: int) -> Iterable[int]:
        asked = {
            "prompt": prompt, "n_predict": tokens, "temperature": 0.0, "top_k": 1, "cache_prompt": False,
            "ignore_eos": not ends,
        }  # fmt: skip
        choice = server.handle_completions(asked)["choices"][0]
        ended = choice["finish_reason"] == "stop"
        return [*tokenizer.encode(choice["text"]), *ends[:ended]]

    return decode


def _openvino(path: Path, ends: Sequence[int]) -> list[Contender]:
    return [
        GreedyPeer("OpenVINO GenAI", ends, openvino_decoding(path, ends)),
        GreedyPeer("OpenVINO GenAI prompt lookup", ends, openvino_decoding(path, ends, _DRAFTED)),
    ]


def openvino_decoding(path: Path, ends: Sequence[int], drafted: int = 0) -> Decode:
    """OpenVINO GenAI, which reads GGUF files itself; prompt lookup is a property of its pipeline."""
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
