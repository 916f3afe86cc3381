"""Public draft heads by the base they were trained on, and small models by their families. Imports next to nothing.

Bases and sizes are from the repositories' pages, z-lab's collection and the lists of supported pairs of vLLM, AngelSlim
and NVIDIA TensorRT Edge-LLM. Before a download, size and licence are read from the hub.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.generation.target.naming.hub_names import same_name

DRAFT_MODELS = {
    "qwen3:0.6b": ("Qwen3-8B", "Qwen3-14B", "Qwen3-32B"),
    "hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF": (
        "Qwen2.5-Coder-7B-Instruct", "Qwen2.5-Coder-14B-Instruct", "Qwen2.5-Coder-32B-Instruct",
    ),
    "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF": ("Qwen2.5-7B-Instruct", "Qwen2.5-14B-Instruct", "Qwen2.5-32B-Instruct"),
    "hf:bartowski/Llama-3.2-1B-Instruct-GGUF": ("Llama-3.1-8B-Instruct", "Llama-3.3-70B-Instruct"),
}  # fmt: skip
"""Small models by name, and models of their families at least eight times as large: on a CPU, drafts of a larger share
of the model seldom pay.
"""


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A repository with a head of method `kind`. `megabytes` (10^6 bytes) and `licence` are empty if unknown."""

    base: str
    repo: str
    kind: str
    megabytes: int | None = None
    licence: str = ""

    @property
    def name(self) -> str:
        """The name for `--head`."""
        return f"hf:{self.repo}"

    @property
    def size(self) -> str:
        """Its size for people."""
        return "unknown" if self.megabytes is None else f"{self.megabytes:,} MB"


KNOWN_HEADS: tuple[KnownHead, ...] = (
    KnownHead("Qwen/Qwen3-1.7B", "AngelSlim/Qwen3-1.7B_eagle3", "eagle3"),
    KnownHead("Qwen/Qwen3-4B", "AngelSlim/Qwen3-4B_eagle3", "eagle3"),
    KnownHead("Qwen/Qwen3-4B", "z-lab/Qwen3-4B-DFlash-b16", "block", 1000),
    KnownHead("Qwen/Qwen3-4B", "RedHatAI/Qwen3-4B-speculator.dflash2", "block", None, "apache-2.0"),
    KnownHead("Qwen/Qwen3-4B", "deepseek-ai/dspark_qwen3_4b_block7", "block"),
    KnownHead("Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3", "eagle3", 2044, "apache-2.0"),
    KnownHead("Qwen/Qwen3-8B", "AngelSlim/Qwen3-8B_eagle3", "eagle3"),
    KnownHead("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16", "block", 2000),
    KnownHead("Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.dflash2", "block"),
    KnownHead("Qwen/Qwen3-14B", "RedHatAI/Qwen3-14B-speculator.eagle3", "eagle3", 2775, "apache-2.0"),
    KnownHead("Qwen/Qwen3-14B", "AngelSlim/Qwen3-14B_eagle3", "eagle3"),
    KnownHead("Qwen/Qwen3-32B", "RedHatAI/Qwen3-32B-speculator.eagle3", "eagle3", 3121, "apache-2.0"),
    KnownHead("Qwen/Qwen3-32B", "AngelSlim/Qwen3-32B_eagle3", "eagle3"),
    KnownHead(
        "Qwen/Qwen3-30B-A3B-Instruct-2507", "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3", "eagle3", 1000
    ),
    KnownHead(
        "Qwen/Qwen3-Coder-30B-A3B-Instruct", "JinnP/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct", "eagle3", 350,
        "apache-2.0",
    ),
    KnownHead("Qwen/Qwen3-Coder-30B-A3B-Instruct", "z-lab/Qwen3-Coder-30B-A3B-DFlash", "block", 1000),
    KnownHead("Qwen/Qwen3-Coder-Next", "thoughtworks/Qwen3-Coder-Next-Eagle3", "eagle3", None, "apache-2.0"),
    KnownHead("Qwen/Qwen3.5-4B", "z-lab/Qwen3.5-4B-DFlash", "block", 1000),
    KnownHead("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash", "block", 2000),
    KnownHead("Qwen/Qwen3.5-27B", "z-lab/Qwen3.5-27B-DFlash", "block"),
    KnownHead("Qwen/Qwen3.5-35B-A3B", "z-lab/Qwen3.5-35B-A3B-DFlash", "block", 1000),
    KnownHead("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash", "block"),
    KnownHead("Qwen/Qwen3.8-27B", "z-lab/Qwen3.8-27B-DFlash2", "block", 4000, "apache-2.0"),
    KnownHead("Qwen/Qwen3.6-35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash", "block", 800),
    KnownHead("meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3", 850),
    KnownHead("meta-llama/Llama-3.1-8B-Instruct", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", "block", 2000),
    KnownHead("meta-llama/Llama-3.3-70B-Instruct", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "eagle3", 3152),
    KnownHead("openai/gpt-oss-20b", "RedHatAI/gpt-oss-20b-speculator.eagle3", "eagle3"),
    KnownHead("openai/gpt-oss-20b", "z-lab/gpt-oss-20b-DFlash", "block", 1600),
    KnownHead("openai/gpt-oss-120b", "lmsys/EAGLE3-gpt-oss-120b-bf16", "eagle3", 1800),
    KnownHead("google/gemma-4-E2B-it", "google/gemma-4-E2B-it-assistant", "mtp", 190, "apache-2.0"),
    KnownHead("google/gemma-4-E4B-it", "google/gemma-4-E4B-it-assistant", "mtp", None, "apache-2.0"),
    KnownHead("google/gemma-4-26B-A4B-it", "google/gemma-4-26B-A4B-it-assistant", "mtp", 800, "apache-2.0"),
    KnownHead("google/gemma-4-31B-it", "google/gemma-4-31B-it-assistant", "mtp", 800, "apache-2.0"),
    KnownHead("google/gemma-4-31B-it", "RedHatAI/gemma-4-31B-it-speculator.eagle3", "eagle3", 4000),
)  # fmt: skip
"""For each base, the head for `--head auto` is first."""


def known_draft_model(base_names: Iterable[str]) -> str | None:
    """The name of a small model of a base's family, by any of the base's names."""
    names = [*base_names]
    large = ((small, base) for small, bases in DRAFT_MODELS.items() for base in bases)
    return next((small for small, base in large if any(same_name(base, name) for name in names)), None)


def known_heads(base_names: Iterable[str]) -> list[KnownHead]:
    """The heads of a base by any of its names: of its repository, folder or file, or in its GGUF metadata."""
    names = [*base_names]
    return [head for head in KNOWN_HEADS if any(same_name(head.base, name) for name in names)]
