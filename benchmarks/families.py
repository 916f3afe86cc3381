"""Families compared with llama.cpp and ik_llama.cpp: tokens a second of the same GGUF files, with the same threads.

SmolLM2 and random 4-bit weights in the shapes of public models whose weights no package contains, or the given files.
`python -m benchmarks.families SHAPE STORAGE FOLDER` writes such a file, in q4_0 or q8_0.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType
from rich.progress import track
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.lfm2 import Lfm2Config, Lfm2ForCausalLM
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from services.generation.engine.core import EngineCore, EngineSettings
from services.generation.engine.cost import PassCost
from services.generation.engine.events import Event
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.kernels.machine import cpus
from services.generation.target.model_path import model_path
from tests.fakes.converted_gguf import convert

_TOKENS, _AT_ONCE = 64, (4, 16)
SHAPES: Mapping[str, tuple[type[PreTrainedModel], PretrainedConfig]] = {
    "LFM2-1.2B": (
        Lfm2ForCausalLM,
        Lfm2Config(
            vocab_size=65536, hidden_size=2048, intermediate_size=8192, block_auto_adjust_ff_dim=False,
            num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True,
            layer_types=["full_attention" if n in (2, 5, 8, 10, 12, 14) else "conv" for n in range(16)],
        ),
    ),
    "Qwen3.5-0.8B": (
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig(
            vocab_size=248320, hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
            num_key_value_heads=2, head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16,
            linear_key_head_dim=128, linear_value_head_dim=128, tie_word_embeddings=True,
        ),
    ),
    "Qwen2.5-0.5B": (
        Qwen2ForCausalLM,
        Qwen2Config(
            vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
            num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True,
        ),
    ),
    "Llama-3.2-1B": (
        LlamaForCausalLM,
        LlamaConfig(
            vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
            num_key_value_heads=8, max_position_embeddings=131072, tie_word_embeddings=True,
        ),
    ),
    "Qwen3-4B": (
        Qwen3ForCausalLM,
        Qwen3Config(
            vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
            num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        ),
    ),
}  # fmt: skip
_BATCHED_FLAGS = {
    "ik_llama.cpp": ("-fa", 0)
}  # its flash attention fails an assertion with several sequences in a batch
_MEASURED = ("LFM2-1.2B", "Qwen3.5-0.8B")


def measure(peers: Mapping[str, Path], files: Sequence[Path], *, prompt: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each file: the most tokens a second of rounds in which kolm and its peers take turns.

    `peers`: folders of their programs by name; `prompt`: tokens of the prompt.
    """
    with tempfile.TemporaryDirectory() as folder:
        return [_beside(peers, path, prompt, rounds) for path in track([*_files(files, Path(folder))], "families")]


def _files(named: Sequence[Path], folder: Path) -> Iterator[Path]:
    yield from named or (model_path("smollm2"),)
    for name in () if named else _MEASURED:
        yield random_file(name, "q4_0", folder)


def random_file(name: str, storage: str, folder: Path) -> Path:
    """A file of random weights in a public model's shape, with SmolLM2's tokens first in its vocabulary."""
    directory = random_model(SHAPES[name], folder / name, torch.float16)
    path = folder / f"{name}.random.{storage}.gguf"
    convert(directory, path, GGMLQuantizationType[storage.upper()], change_metadata=_with_tokens)
    shutil.rmtree(directory)
    return path


def random_model(shape: tuple[type[PreTrainedModel], PretrainedConfig], folder: Path, dtype: torch.dtype) -> Path:
    kind, config = shape
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    with torch.device("meta"):
        shapes = {name: each.shape for name, each in kind(config).named_parameters()}
    tensors = {
        name: torch.ones(shape, dtype=dtype) if len(shape) == 1 else torch.empty(shape, dtype=dtype).normal_(std=0.02)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    config.architectures = [kind.__name__]
    config.dtype = dtype
    config.save_pretrained(folder)
    bundled = model_path(Path("smollm2"))
    AutoTokenizer.from_pretrained(bundled.parent, gguf_file=bundled.name).save_pretrained(folder)
    return folder


def _with_tokens(metadata: dict[str, Any]) -> None:
    fields = GGUFReader(model_path("smollm2")).fields
    own = {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}
    for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        own[name] += metadata[name][len(own[name]) :]
    metadata |= own


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
        """Run all prompts concurrently; returns the tokens of all in the order in which they are made."""
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


def _beside(peers: Mapping[str, Path], path: Path, prompt: int, rounds: int) -> dict[str, Any]:
    kolm = Kolm(path, prompt + _TOKENS)
    kolm.generate([9], _TOKENS)  # llama-bench warms up, too
    best: dict[str, float] = {}
    for turn in range(rounds):
        for name, rate in [*_rates(kolm, turn, prompt), *_peers_rates(peers, path, prompt)]:
            best[name] = max(best.get(name, 0.0), round(rate, 1))
    return {
        "file": path.name,
        "family": kolm.target.config.architecture,
        "numerics": kolm.target.numerics,
        "megabytes": path.stat().st_size >> 20,
        "prompt": prompt,
        "a second": best,
    }


def _rates(kolm: Kolm, turn: int, prompt: int) -> Iterator[tuple[str, float]]:
    """kolm's tokens a second, under the names of a result."""
    first = turn + 10
    decoding = seconds(kolm.generate, [first], _TOKENS + 1) - seconds(kolm.generate, [first], 1)
    yield "kolm, tokens", _TOKENS / decoding
    for many in _AT_ONCE:
        prompts = [[first, number] for number in range(300, 300 + many)]
        decoding = seconds(kolm.generate_all, prompts, _TOKENS + 1) - seconds(kolm.generate_all, prompts, 1)
        yield f"kolm, tokens of {many} at once", many * _TOKENS / decoding
    yield "kolm, prompt", prompt / seconds(kolm.generate, [first, *range(300, 299 + prompt)], 1)


def _peers_rates(peers: Mapping[str, Path], path: Path, prompt: int) -> Iterator[tuple[str, float]]:
    for name, programs in peers.items():
        asked = ("-m", path.absolute(), "-t", cpus())
        alone = _run([programs / "llama-bench", *asked, "-p", prompt, "-n", _TOKENS, "-r", 1, "-o", "json"])
        for test in json.loads(alone.stdout):
            yield f"{name}, {'tokens' if test['n_gen'] else 'prompt'}", test["avg_ts"]
        context = max(_AT_ONCE) * (_TOKENS + 2)
        lengths = ("-c", context, "-npp", 2, "-ntg", _TOKENS, "-npl", ",".join(map(str, _AT_ONCE)))
        flags = _BATCHED_FLAGS.get(name, ())
        done = _run([programs / "llama-batched-bench", *asked, *lengths, *flags])
        for many, rate in at_once(done.stdout + done.stderr):  # ik_llama.cpp writes its table to stderr
            yield f"{name}, tokens of {many} at once", rate


def at_once(text: str) -> Iterator[tuple[int, float]]:
    """Sequences at once and their tokens a second from llama-batched-bench's table."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 10 and cells[0].isdecimal():
            yield int(cells[2]), float(cells[7])


def _run(command: Sequence[object]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:  # ik_llama.cpp writes a log to its working directory
        done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    return done


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("shape", choices=tuple(SHAPES))
    parser.add_argument("storage", choices=("q4_0", "q8_0"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print(random_file(given.shape, given.storage, given.folder))


if __name__ == "__main__":
    main()
