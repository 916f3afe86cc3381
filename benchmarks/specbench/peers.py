"""Peers on the same GGUF file, the same threads, greedy, one request at a time; those that are installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.engines import Contender, Run
from services.generation.target.canonical.kernels.machine import cpus

LONGEST = 8192
"""Tokens of context."""

_DRAFTED = 10
"""Tokens that prompt lookup drafts at most, in all peers; it is transformers' and llama-cpp-python's own advice."""


class GreedyPeer:
    """A peer's plain or drafted decoding. `decode` gives tokens after a prompt, those that end a text included."""

    def __init__(self, name: str, ends: Iterable[int], decode: Callable[[list[int], int], Iterable[int]]) -> None:
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
    for package, make in (("transformers", _transformers), ("llama_cpp", _llama), ("openvino_genai", _openvino)):
        if find_spec(package) is None:
            absent.append(package)
            continue
        pair = make(path, ends)
        found += pair
        plain |= {peer.name: pair[0].name for peer in pair}
    return found, plain, absent


def _transformers(path: Path, ends: Sequence[int]) -> list[Contender]:
    """In float32 on the dequantised file, with as many threads as kolm has."""
    torch.set_num_threads(cpus())
    model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.requires_grad_(False)

    def generate(**drafting: Any) -> Callable[[list[int], int], Iterable[int]]:
        def decode(prompt: list[int], tokens: int) -> Iterable[int]:
            ids = torch.tensor([prompt])
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False,
                eos_token_id=list(ends), pad_token_id=ends[0], **drafting,
            )  # fmt: skip
            made: list[int] = out[0, len(prompt) :].tolist()
            return made

        return decode

    return [
        GreedyPeer("transformers generate", ends, generate()),
        GreedyPeer("transformers prompt lookup", ends, generate(prompt_lookup_num_tokens=_DRAFTED)),
    ]


def _llama(path: Path, ends: Sequence[int]) -> list[Contender]:
    """llama.cpp through llama-cpp-python. Its drafts need the logits of all rows of a prompt, which it keeps."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    def opened(**drafting: Any) -> Callable[[list[int], int], Iterable[int]]:
        model = Llama(
            str(path), n_ctx=LONGEST, n_batch=512, n_threads=cpus(), n_threads_batch=cpus(), verbose=False, **drafting
        )

        def decode(prompt: list[int], tokens: int) -> Iterable[int]:
            model.reset()
            return model.generate(prompt, top_k=1, temp=0.0, reset=True)  # type: ignore[no-any-return]

        return decode

    lookup = LlamaPromptLookupDecoding(num_pred_tokens=_DRAFTED)
    return [
        GreedyPeer("llama.cpp", ends, opened()),
        GreedyPeer("llama.cpp prompt lookup", ends, opened(draft_model=lookup)),
    ]


def _openvino(path: Path, ends: Sequence[int]) -> list[Contender]:
    """OpenVINO GenAI, which reads GGUF files itself; prompt lookup is a property of its pipeline."""
    import numpy as np
    import openvino
    import openvino_genai

    def opened(drafted: int, **properties: Any) -> Callable[[list[int], int], Iterable[int]]:
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

    return [
        GreedyPeer("OpenVINO GenAI", ends, opened(0)),
        GreedyPeer("OpenVINO GenAI prompt lookup", ends, opened(_DRAFTED, prompt_lookup=True)),
    ]
