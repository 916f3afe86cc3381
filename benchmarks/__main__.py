"""`python -m benchmarks`: measurements, as JSON in benchmarks/results.

`python -m benchmarks report` renders the result files into the pages, `python -m benchmarks readme` measures the
figures of README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import arithmetic, families, llama_cpp, load, readme, steps
from benchmarks.arithmetic import ARITHMETICS
from benchmarks.machine import RESULTS
from benchmarks.measurement import Measurement, Subject
from benchmarks.report import pages
from benchmarks.specbench import measure as specbench
from benchmarks.specbench.questions import OWN, QuestionsInvalid
from benchmarks.storages import STORAGES
from services.generation.target.model_path import model_path

MEASUREMENTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "arithmetic": lambda given: arithmetic.measure(given.gguf, quick=given.quick),
    "served": lambda given: steps.measure_served(given.gguf or model_path("smollm2")),
    "specbench": lambda given: specbench.measure(
        given.gguf, given.questions, head=given.head, max_tokens=given.max_tokens, quick=given.quick,
        storage=given.storage, arithmetic=given.arithmetic, cases=given.cases,
    ),
    "families": lambda given: families.measure(
        {name: llama_cpp.built(name) for name in given.peers}, given.files, prompt=given.prompt_tokens,
        rounds=given.rounds,
    ),
    "load": lambda given: load.measure(
        given.against, given.extra, rounds=given.rounds, counts=load.CALLERS[: 3 if given.quick else None],
        long=given.long_prompts,
    ),
}  # fmt: skip
_UNASKED = tuple(MEASUREMENTS)[:-3]  # specbench takes hours; others need programs or a server


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        return pages.write()
    if sys.argv[1:2] == ["readme"]:
        return readme.main(sys.argv[2:])
    given = _arguments()
    if "load" in given.only and not given.against:
        raise SystemExit("--only load: expected --against with the URL of a server; `kolm up` is one")
    results: dict[str, Any] = {}
    for name in given.only:
        try:
            results[name] = MEASUREMENTS[name](given)
        except QuestionsInvalid as error:
            raise SystemExit(f"--questions: {error}") from None
        case, subject = _described(name, given, results[name])
        Measurement.now(name, results[name], subject, case=case).write(given.out)
    _show(results)


def _described(name: str, given: argparse.Namespace, figures: Any) -> tuple[str, Subject]:
    """The case that distinguishes this record from others of the same benchmark and machine, and its subject."""
    model = given.gguf or model_path("smollm2")
    own_head = given.head if given.gguf is None else None
    if name == "specbench":
        case = given.label or "-".join(part for part in (given.storage, given.arithmetic) if part) or "greedy"
        return case, Subject.of(
            model, head=own_head, arithmetic=given.arithmetic or "int8", questions=given.questions.name,
            max_tokens=given.max_tokens,
        )  # fmt: skip
    if name == "load":
        figures |= {"server": given.server, "method": given.extra.get("kolm", {}).get("method", "auto")}
        head = own_head if figures["server"] == "kolm" and figures["method"] == "auto" else None
        long = "long" if given.long_prompts else None
        case = "-".join(part for part in (given.server, given.label, long, figures["method"]) if part)
        return case, Subject.of(model, head=head, max_tokens=figures["tokens"])
    if name == "families":
        return str(given.prompt_tokens), Subject(arithmetic=Subject.of().arithmetic)
    return given.label, Subject.of(model)


def _members(text: str) -> dict[str, Any]:
    """A JSON object. Raises ValueError for anything else."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--head", type=Path, default=Path("demo/smollm2/head"), help="specbench: the draft head (SmolLM2's)"
    )
    parser.add_argument("--max-tokens", type=int, default=128, help="most tokens of an answer (128)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON (benchmarks/results)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=tuple(MEASUREMENTS),
        default=_UNASKED,
        help="run only these (all but the last three)",
    )
    parser.add_argument(
        "--peers", nargs="*", choices=tuple(llama_cpp.SOURCES), default=("llama.cpp",),
        help="families: programs to compare with, built for this CPU unless they are in .cache (llama.cpp)",
    )  # fmt: skip
    parser.add_argument("--files", type=Path, nargs="+", default=(), help="families: measure only these GGUF files")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="families: the length of the prompt (512)")
    parser.add_argument(
        "--gguf",
        type=Path,
        help="specbench, arithmetic, served: the model, a GGUF file (SmolLM2-135M-Instruct, 4 bits)",
    )
    parser.add_argument("--questions", type=Path, default=OWN, help="specbench: Spec-Bench's question.jsonl (ours)")
    parser.add_argument(
        "--cases", nargs="+", type=specbench.Case.parse, default=(), metavar="T:BATCH[:CONTEXT]",
        help="specbench: measure only these cases, such as 0:1 1:16 0:1:2048",
    )  # fmt: skip
    parser.add_argument(
        "--storage", choices=STORAGES, help="specbench: the storage of the weights (q4_1, as published)"
    )
    parser.add_argument(
        "--arithmetic", choices=ARITHMETICS, help="specbench: kolm's arithmetic (the usual one for the file)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="specbench, load, arithmetic: measure for minutes instead of hours"
    )
    parser.add_argument("--label", default="", help="part of the result file's name: another model, other flags")
    parser.add_argument("--server", default="kolm", help="load: the server's name in the results (kolm)")
    parser.add_argument("--against", metavar="URL", help="load: the OpenAI-compatible server, http://host:port/v1")
    parser.add_argument(
        "--long-prompts", action="store_true",
        help="load: prompts of 30 to 1,500 tokens, and first tokens by the length of the prompt",
    )  # fmt: skip
    parser.add_argument(
        "--extra", type=_members, default={}, metavar="JSON",
        help='load: members of each request beside OpenAI\'s, as {"kolm": {"method": "off"}}',
    )  # fmt: skip
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="families, load: rounds of each case (3)",
    )
    return parser.parse_args()


def _show(results: dict[str, Any]) -> None:
    """Spec-Bench as tables, other benchmarks as their JSON, a line for each row."""
    console = Console()
    for name in MEASUREMENTS:
        if name == "specbench":
            for case in results.get(name, {}).get("cases", []):
                console.print(_kinds(case))
        elif name in results:
            rows = results[name] if isinstance(results[name], list) else [results[name]]
            for row in rows:
                console.print(name, row)


def _kinds(case: dict[str, Any]) -> Table:
    """Speedup over a contender's own plain decoding with its standard error, by kind, and in all."""
    kinds = list(dict.fromkeys(kind for each in case["contenders"].values() for kind in each["kinds"]))
    title = f"T = {case['temperature']:g}, batch {case['batch']}, context {case['context'] or 'as written'}"
    table = Table("contender", *kinds, "all", "tokens/s", "length", "same", title=title)
    for name, each in case["contenders"].items():
        speedups = [_with_error(part) for part in (*(each["kinds"].get(kind, {}) for kind in kinds), each)]
        figures = (each[part] for part in ("tokens_per_second", "acceptance length", "identical to plain"))
        table.add_row(name, *speedups, *("–" if value is None else str(value) for value in figures))
    return table


def _with_error(figures: dict[str, Any]) -> str:
    speedup, error = figures.get("speedup"), figures.get("error")
    return "–" if speedup is None else f"{speedup:.2f}" + ("" if error is None else f" ± {error:.2f}")


if __name__ == "__main__":
    main()
