"""Names of models on a hub: `hf:OWNER/REPOSITORY[@REVISION][:FILE or :QUANTISATION]`, and short names.

The command line imports this module at its start, so it imports little.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.generation.target.errors import ModelNotFound
from services.generation.target.files.part_names import SIDECAR, PartName, missing_part

SHORT: Mapping[str, str] = {
    "gemma3:4b": "ggml-org/gemma-3-4b-it-GGUF",
    "gpt-oss:20b": "ggml-org/gpt-oss-20b-GGUF",
    "llama3.2:3b": "bartowski/Llama-3.2-3B-Instruct-GGUF",
    "qwen2.5-coder:7b": "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF",
    "qwen3:0.6b": "Qwen/Qwen3-0.6B-GGUF",
    "qwen3:4b": "Qwen/Qwen3-4B-GGUF",
    "qwen3:8b": "Qwen/Qwen3-8B-GGUF",
    "smollm2:1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
    "smollm2:360m": "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
    "smollm3:3b": "ggml-org/SmolLM3-3B-GGUF",
}
"""Repositories on huggingface.co by short names in Ollama's form. Qwen and HuggingFaceTB trained their models, ggml-org
develops llama.cpp. Meta publishes no GGUF files of Llama; bartowski's are the most used.
"""

MAIN = "main"
_NAME = re.compile(
    r"hf:(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>(?![\w./-]*\.\.)\w[\w./-]*))?(?::(?P<wanted>[^:]+))?"
)
_QUANTISATION = re.compile(r"(?:^|[-._/])(F32|BF16|F16|MXFP4|I?Q\d(?:_[A-Z0-9]+)*)\.gguf$", re.IGNORECASE)
_EIGHT_BITS = ("Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0")
_FOUR_BITS = ("Q4_K_M", "MXFP4", "Q4_K_S", "IQ4_NL", "Q4_1", "Q4_0")
_UNROUNDED = ("BF16", "F16", "F32")
_COMFORT = 8
"""A file of five to eight bits comes before one of four bits if the memory is at least this many times its size: it is
closer to the trained weights, but slower to read for every token."""
_COPIES, _CACHE = 2, 1 << 30
"""Copies of the weights under `kolm up` (server and auditor are two processes), and bytes of their caches together."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A model in a repository. `wanted` is a GGUF file, a quantisation such as Q4_K_M, or empty: see `choose`."""

    repo: str
    revision: str = MAIN
    wanted: str = ""

    @classmethod
    def of(cls, named: str) -> HubName | None:
        """Parse a short name or `hf:…`. None for any other string; raises ModelNotFound for a malformed `hf:…`."""
        if (repo := SHORT.get(named)) is not None:
            return cls(repo)
        if not named.startswith("hf:"):
            return None
        if (found := _NAME.fullmatch(named)) is None:
            raise ModelNotFound(f"{named}: expected hf:OWNER/REPOSITORY, with @REVISION and :FILE or :QUANTISATION")
        return cls(found["repo"], found["revision"] or MAIN, found["wanted"] or "")

    def __str__(self) -> str:
        revision = "" if self.revision == MAIN else f"@{self.revision}"
        return f"hf:{self.repo}{revision}{':' if self.wanted else ''}{self.wanted}"


def quantisation(file: str) -> str:
    """The quantisation in a GGUF file's name, in capitals; empty if the name has none."""
    part = PartName.of(file)
    found = _QUANTISATION.search(f"{part.stem}.gguf" if part else file)
    return found[1].upper() if found else ""


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def is_model_file(name: str) -> bool:
    """Whether a file name is that of a GGUF model or its first part. A projector for images (mmproj) is not a model,
    nor is the sidecar of an MTP block.
    """
    part, own = PartName.of(name), name.rpartition("/")[2].lower()
    beside = "mmproj" in name.lower() or own.startswith(SIDECAR)
    return _is_gguf(own) and (part is None or part.number == 1) and not beside


def files_of(file: str) -> list[str]:
    """The names of all files of the model whose file, or first part, is `file`."""
    part = PartName.of(file)
    return [*part.siblings()] if part else [file]


def choose(sizes: Mapping[str, int], name: HubName, memory: int | None) -> str | None:
    """The GGUF file of a repository that `name` means, or its first part. None if it has safetensors and no GGUF file.

    If `name.wanted` is empty, the first of: the only file, the best of eight to five bits that is much smaller than
    `memory`, the best of four bits that fits, the best of eight to five bits or unrounded that fits. Raises
    ModelNotFound if no file is meant or fits, or if there are several and `memory` is None.
    """
    wholes = {file: files_of(file) for file in sizes if is_model_file(file)}
    files = {file: sum(sizes[part] for part in parts) for file, parts in wholes.items() if sizes.keys() >= {*parts}}
    if name.wanted:
        meant = [file for file in files if name.wanted in (file, file.rpartition("/")[2])] or [
            file for file in files if quantisation(file) == name.wanted.upper()
        ]
        if len(meant) == 1:
            return meant[0]
        raise ModelNotFound(f"{name}: {'several files have' if meant else 'no file has'} this name; {_shown(sizes)}")
    if not files:
        if any(file.endswith(".safetensors") for file in sizes):
            return None
        raise ModelNotFound(f"{name}: neither a GGUF file nor safetensors; {_shown(sizes)}")
    if len(files) == 1:
        return next(iter(files))
    if memory is None:
        raise ModelNotFound(f"{name}: several files; name one, such as {name}:Q4_K_M; {_shown(sizes)}")
    by_kind = {quantisation(file): file for file in sorted(files, reverse=True)}
    fitting = {kind: file for kind, file in by_kind.items() if _COPIES * files[file] + _CACHE <= memory}
    small = {kind: file for kind, file in fitting.items() if _COMFORT * files[file] <= memory}
    for kinds, among in ((_EIGHT_BITS, small), (_FOUR_BITS, fitting), (_EIGHT_BITS + _UNROUNDED, fitting)):
        if found := next((among[kind] for kind in kinds if kind in among), None):
            return found
    known = {*_EIGHT_BITS, *_FOUR_BITS, *_UNROUNDED}.intersection(by_kind)
    why = f"no file fits twice into {memory / 1e9:.1f} GB of memory" if known else "no file has a known quantisation"
    raise ModelNotFound(f"{name}: {why}; {_shown(sizes)}")


def _shown(sizes: Mapping[str, int]) -> str:
    files = [f"{name} ({size / 1e9:.2f} GB)" for name, size in sizes.items() if _is_gguf(name)]
    missing = f"; {part} is missing" if (part := missing_part([*filter(_is_gguf, sizes)])) else ""
    return f"there are {', '.join(files[:12])}{missing}" if files else "there are no GGUF files"


def same_name(repo: str, name: str) -> bool:
    """Whether `name` means the model of a repository or a path. It ignores the owner, letter case, GGUF at the end, and
    blanks or underscores for hyphens.
    """
    return _plain(repo) == _plain(name)


def _plain(name: str) -> str:
    last = name.rstrip("/").rpartition("/")[2]
    return re.sub(r"[\s_-]+", "-", last).casefold().removesuffix("-gguf")


def memory_at_hand() -> int | None:
    """Bytes that the machine and the control group can allocate without swapping; all memory if the machine does not
    report them, None if that is unknown too.
    """
    found = []
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError, KeyError, IndexError):
        pass
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)
