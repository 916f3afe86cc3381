"""Records by benchmark, and their parts as cells of Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.measurement import Machine, Measurement

Results = Mapping[str, Sequence[Measurement]]
"""Records by benchmark."""

DASH = "–"
FOLDER = "results:"
"""Stands for the results' folder in rendered links; each page has its own relative path to it."""

INT8 = ("int8, int8 cache", "int8, bfloat16 cache", "int8")
"""Names of the default arithmetic in records of `arithmetic`, the serving one first."""

_MACHINES = {
    "zen3": "Zen 3",
    "zen4": "Zen 4",
    "zen5": "Zen 5",
    "icelake": "Ice Lake",
    "emeraldrapids": "Emerald Rapids",
    "xeon": "Xeon",
    "genuineintel-6-167": "Xeon-167",
}
_SETS = {"avx512vnni": "AVX-512 VNNI", "avx2": "AVX2", "amx": "AMX", "avx512": "AVX-512"}
_MODELS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M, Q4_1",
    "gemma-3-270m-chat.q4_k_m.gguf": "Gemma 3 270M, Q4_K_M",
    "gemma.gguf": "Gemma 3 270M, Q4_K_M",
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf": "Qwen2.5-Coder-1.5B, Q4_K_M",
    "Llama-3.2-1B.random.q4_0.gguf": "random weights in Llama-3.2-1B's shape, Q4_0",
    "Qwen3-4B.random.q4_0.gguf": "Qwen3-4B",
    "Llama-3.2-1B.random.q8_0.gguf": "random weights in Llama-3.2-1B's shape, Q8_0",
}


def table(titles: str, rows: Iterable[Sequence[str]]) -> str:
    """Markdown. `titles`: the first line without its outer bars."""
    lines = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([f"| {titles} |", "|" + "---|" * (titles.count("|") + 1), *lines])


def machines(results: Results) -> str:
    """One row for each machine of any record, with the fastest reading of its memory: other programs slow it down."""
    records = [record for name in results for record in results[name]]
    records.sort(key=lambda record: record.machine.bandwidth or 0.0)
    named = {record.machine.name: record.machine for record in records}
    sets = {name: {set_name(each.machine) for each in records if each.machine.name == name} for name in named}
    rows = [
        (_MACHINES.get(name, name), each.processor, str(each.cores), ", ".join(sorted(sets[name])), _bandwidth(each))
        for name, each in sorted(named.items())
    ]
    return table("name | processor | cores | measured with | reads memory at", rows)


def machine_name(machine: Machine) -> str:
    return f"{_MACHINES.get(machine.name, machine.name)}, {set_name(machine)}"


def set_name(machine: Machine) -> str:
    return _SETS.get(machine.instruction_set, machine.instruction_set)


def _bandwidth(machine: Machine) -> str:
    return "not measured" if machine.bandwidth is None else f"{machine.bandwidth / 1e9:.0f} GB/s"


def model_name(name: str | None) -> str:
    """The model of a file's name."""
    return _MODELS.get(name or "", name or "")


def link(record: Measurement) -> str:
    return f"[JSON]({FOLDER}{record.name}.json)"


def two_places(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def rounded(value: float | None) -> str:
    """Whole from 20 on, one place below."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.1f} %"


def count(value: int | None) -> str:
    return DASH if value is None else f"{value:,}"


def first_token(case: Mapping[str, Any] | None) -> str:
    """Median and 99 % of a case of `load`."""
    return f"{case['first_token_ms']['p50']:.0f} / {case['first_token_ms']['p99']:.0f} ms" if case else DASH


def is_alone(case: Mapping[str, Any]) -> bool:
    """Whether a case of `specbench` is one request at a time, with prompts as written."""
    return case["batch"] == 1 and not case["context"]
