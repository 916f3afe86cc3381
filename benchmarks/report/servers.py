"""Tables of passes, of servers under load, of starts, and of the comparison with llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.report.tables import (
    DASH,
    INT8,
    Results,
    first_token,
    link,
    machine_name,
    model_name,
    percent,
    rounded,
    table,
    two_places,
)

_PEERS = ("kolm", "llama.cpp", "ik_llama.cpp")
_COMPARED = ("tokens", "tokens of 4 at once", "tokens of 16 at once", "prompt")


def llama_cpp(results: Results, *, long: bool) -> str:
    """Rates of kolm and its peers; `long`: with prompts of more than 512 tokens."""
    rows = [
        (machine_name(record.machine), model_name(each["file"]), str(each["prompt"]), *_rates(each), link(record))
        for record in results["families"]
        for each in record.figures
        if (each["prompt"] > 512) == long
    ]
    return table(
        "machine | model | prompt | decoding, tokens/s | 4 at once | 16 at once | prompt, tokens/s | ",
        sorted(rows, key=lambda row: (row[0], int(row[2]))),
    )


def _rates(figures: Mapping[str, Any]) -> Iterator[str]:
    """Cells of the rates of kolm and its peers, with the ratio of kolm's to the fastest peer's."""
    for compared in _COMPARED:
        rates = [figures["a second"].get(f"{name}, {compared}") for name in _PEERS]
        mine, *others = rates
        peers = [rate for rate in others if rate is not None]
        shown = "/".join(map(rounded, rates if rates[-1] is not None else rates[:-1]))
        yield f"{shown} (**{mine / max(peers):.2f}**)" if peers else rounded(mine)


def passes(results: Results) -> str:
    rows = []
    for record in results["arithmetic"]:
        near, far = (record.figures["milliseconds"][f"{length} tokens before"] for length in (100, 4000))
        name = next(name for name in INT8 if name in near)
        one = near[name]
        rows.append(
            (
                machine_name(record.machine),
                model_name(record.subject.model),
                f"{one['1']:.1f}",
                ", ".join(two_places(one[count] / one["1"]) for count in ("2", "4", "8", "16", "32")),
                two_places(near["float32"]["128"] / one["128"]),
                two_places(far[name]["1"] / one["1"]),
                link(record),
            )
        )
    return table(
        "machine | model | 1 row, ms | 2, 4, 8, 16, 32 rows over 1 | 128 rows, float32 over int8 |"
        " 1 row after 4,000 tokens over after 100 | ",
        sorted(rows, key=lambda row: (row[1], row[0])),
    )


def losses(results: Results) -> str:
    rows = [
        (
            machine_name(record.machine),
            model_name(record.subject.model),
            name,
            f"{value:.4f}",
            percent(record.figures.get("greedy", {}).get(name, {}).get("same token")),
        )
        for record in results["arithmetic"]
        for name, value in (record.figures.get("nats a token") or {}).items()
    ]
    return table("machine | model | arithmetic and cache | nats a token | greedy tokens equal to float32's", rows)


def callers(results: Results) -> str:
    rows = []
    for record in results["load"]:
        cases = {case["callers"]: case for case in record.figures["cases"]}
        sixteen = cases.get(16)
        rates = (cases[count]["tokens_per_second"] if count in cases else None for count in (1, 4, 16, 64))
        server = f"{record.figures['server']}, `{record.figures['method']}`"
        rows.append(
            (
                machine_name(record.machine),
                model_name(record.subject.model),
                server + (", long prompts" if record.figures.get("long_prompts") else ""),
                ", ".join(map(rounded, rates)),
                first_token(sixteen),
                f"{sixteen['inter_token_ms']['p99']:.0f} ms" if sixteen else DASH,
                str(sum(sum(case["failures"].values()) for case in cases.values())),
                link(record),
            )
        )
    return table(
        "machine | model | server | tokens/s at 1, 4, 16, 64 callers | first token at 16, median / 99 % |"
        " between chunks, 99 % | requests failed | ",
        sorted(rows, key=lambda row: (row[1], row[0], row[2])),
    )


def start(results: Results) -> str:
    rows = [
        (
            machine_name(each.machine),
            model_name(each.subject.model),
            f"{each.figures['first'][0]:.1f} s",
            _later(each.figures["later"]),
            _memory(each.figures),
            link(each),
        )
        for each in results["start"]
    ]
    return table(
        "machine | model | first start of `kolm up` | later starts | memory over the weights files' size | ", rows
    )


def first_start(results: Results) -> str:
    """The newest record of `start` with the bundled model as a sentence."""
    record = max((each for each in results["start"] if not each.case), key=lambda each: each.date)
    first, later = record.figures["first"][0], _later(record.figures["later"])
    return (
        f"`kolm up` with {model_name(record.subject.model)} answers after {first:.1f} s at its first start on a"
        f" machine, after {later} later ({machine_name(record.machine)}, {record.machine.cores} cores)."
    )


def _memory(figures: dict[str, Any]) -> str:
    memory = figures.get("memory")
    return DASH if memory is None else f"{memory['server and auditor'] / memory['weights']:.2f}"


def _later(starts: Sequence[Sequence[float]]) -> str:
    least, most = (f"{bound(wall for wall, _ in starts):.1f}" for bound in (min, max))
    return f"{least} s" if least == most else f"{least} to {most} s"
