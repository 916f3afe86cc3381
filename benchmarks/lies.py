"""`python -m benchmarks.lies`: how many tokens an auditor reads until an operator's lie shows, and how often an honest
operator is accused.

llama.cpp serves SmolLM2 with 8 bits a weight (or what the lie puts in its place) on real text. kolm's own arithmetic
passes along each output with the weights that were promised, exactly as `kolm audit run --model` does.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from benchmarks.specbench.questions import OWN, load_questions
from services.generation.engine.text.tokenizer import Tokenizer

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
        from gguf.quants import dequantize, quantize

        path.write_bytes(model.read_bytes())
        generator = np.random.default_rng(7)
        for tensor in GGUFReader(path, "r+").tensors:
            if len(tensor.shape) == 2 and tensor.name.startswith("blk."):
                values = dequantize(tensor.data, tensor.tensor_type)
                values += generator.normal(0.0, share * values.std(), values.shape).astype(np.float32)
                tensor.data[:] = quantize(values, tensor.tensor_type)
    return path
