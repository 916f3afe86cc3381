"""`python -m benchmarks report`: render the result files into the marked blocks of README.md and docs.

A block is between `<!-- benchmarks: NAME -->` and `<!-- end -->`. `tests/unit/benchmarks/test_report.py` compares the
pages with this module's output for `benchmarks/results`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS
from benchmarks.measurement import Machine, Measurement, measurements

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("benchmarks", "serving", "heads", "engines", "scaling")),
    "benchmarks/results/README.md",
)
_BLOCK = re.compile(r"(<!-- benchmarks: (?P<name>[a-z0-9 -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_NAMES = {
    "zen3": "Zen 3",
    "zen4": "Zen 4",
    "zen5": "Zen 5",
    "icelake": "Ice Lake",
    "xeon": "Xeon",
    "genuineintel-6-167": "Xeon-167",
}
_SETS = {"avx512vnni": "AVX-512 VNNI", "avx2": "AVX2", "amx": "AMX", "avx512": "AVX-512"}
_MODELS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M, Q4_1",
    "gemma-3-270m-chat.q4_k_m.gguf": "Gemma 3 270M, Q4_K_M",
    "gemma.gguf": "Gemma 3 270M, Q4_K_M",
    "Llama-3.2-1B.random.q4_0.gguf": "random weights in Llama-3.2-1B's shape, Q4_0",
    "Llama-3.2-1B.random.q8_0.gguf": "random weights in Llama-3.2-1B's shape, Q8_0",
}
_KINDS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")
_INT8 = ("int8, int8 cache", "int8, bfloat16 cache", "int8")
_DASH = "–"
_FOLDER = "results:"
"""Stands for the results' folder in rendered links; each page has its own relative path to it."""

Results = Mapping[str, Sequence[Measurement]]
"""Records by benchmark."""


def render(pages: Iterable[str] = PAGES, folder: Path = RESULTS) -> dict[Path, str]:
    """Text of each page with its blocks rendered. Raises KeyError for a block of an unknown name."""
    results = by_benchmark(measurements(folder))
    return {path: render_text(path.read_text(), results, path.parent) for path in map(ROOT.joinpath, pages)}


def render_text(text: str, results: Results, folder: Path = ROOT) -> str:
    """`text`, of a page in `folder`, with its blocks rendered. Raises KeyError for a block of an unknown name."""
    there = os.path.relpath(RESULTS, folder) + "/"

    def block(match: re.Match[str]) -> str:
        table = BLOCKS[match["name"]](results).replace(_FOLDER, "" if there == "./" else there)
        return f"{match[1]}{table}\n{match[3]}"

    return _BLOCK.sub(block, text)


def by_benchmark(found: Iterable[Measurement]) -> Results:
    results: dict[str, list[Measurement]] = {}
    for record in found:
        results.setdefault(record.benchmark, []).append(record)
    return results


def write() -> None:
    """Rewrite the pages whose blocks have changed."""
    for path, text in render().items():
        if path.read_text() != text:
            path.write_text(text)
            print(f"rendered {path.relative_to(ROOT)}")


def readme(results: Results) -> str:
    """The block of README.md: one machine, one commit, one head, and a line for the range over other machines."""
    record = max(results["readme"], key=lambda each: each.date)
    figures = record.figures
    decoding, callers, peers = figures["decoding"], figures["callers"], figures["callers_peer"]
    rows = [
        ("whole requests, greedy, tokens/s", "with drafts", "kolm, plain", *_drafted(decoding["greedy"])),
        ("whole requests, T = 1, tokens/s", "with drafts", "kolm, plain", *_drafted(decoding["t1"])),
        ("plain decoding alone, tokens/s", "plain", "llama.cpp", *_pair(figures["peer"], "tokens")),
        ("prompt of 512 tokens, tokens/s", "plain", "llama.cpp", *_pair(figures["peer"], "prompt")),
        *(
            (
                f"{_callers(mine)}, tokens/s",
                "with drafts",
                "llama.cpp",
                *_ratio(mine["tokens_per_second"], its["tokens_per_second"]),
            )
            for mine, its in zip(callers, peers, strict=True)
        ),
        (
            f"{_callers(callers[-1])}, first token, median / 99 %",
            "with drafts",
            "llama.cpp",
            _first(callers[-1]),
            _first(peers[-1]),
            "",
        ),
        ("requests failed", "with drafts", "llama.cpp", _failed(callers), _failed(peers), ""),
    ]
    shown = [(what, f"{mine} {name}", f"{its} {other}", ratio) for what, name, other, mine, its, ratio in rows]
    replay = f"Replaying 128 tokens takes {figures['replay']['ratio']:.2f} times as long as plain decoding of them."
    return "\n".join(
        [
            _conditions(record),
            "",
            *_table(("", "kolm", "compared with", "ratio"), shown),
            "",
            f"{replay} {_others(results, record.machine)}",
        ]
    )


def _conditions(record: Measurement) -> str:
    machine, subject = record.machine, record.subject
    return (
        f"{_machine(machine)}, {machine.cores} cores; {_model(record)}; commit `{record.commit}`, {record.date[:10]};"
        f" head `{(subject.head_digest or '')[7:19]}`; {(subject.questions or '').split()[0]} questions, at most"
        f" {subject.max_tokens} tokens an answer; llama.cpp {record.figures['peer']['version']} in the same run, same"
        " file and cores. Whole requests include the prompt, and their ratio is a mean over kinds of questions; rows of"
        " callers compare `kolm up` without audits with llama-server. `make bench-readme` measures it."
    )


def _others(results: Results, machine: Machine) -> str:
    gains = [
        (case["contenders"]["kolm auto"]["speedup"], record.machine)
        for record in results.get("specbench", ())
        for case in record.figures["cases"]
        if record.machine.slug != machine.slug and record.case == "greedy" and _is(case, temperature=0.0, batch=1)
    ]
    if not gains:
        return ""
    low, high = min(gains, key=lambda each: each[0]), max(gains, key=lambda each: each[0])
    return (
        f"On other machines kolm with drafts is {low[0]:.2f} ({_machine(low[1])}) to"
        f" {high[0]:.2f} ({_machine(high[1])}) times as fast as plain decoding, greedy"
        " ([docs/benchmarks.md](docs/benchmarks.md))."
    )


def machines(results: Results) -> str:
    """One row for each machine of any record."""
    each = {record.machine.name: record.machine for name in results for record in results[name]}
    sets: dict[str, set[str]] = {}
    for name in results:
        for record in results[name]:
            sets.setdefault(record.machine.name, set()).add(
                _SETS.get(record.machine.instruction_set, record.machine.instruction_set)
            )
    rows = [
        (
            _NAMES.get(name, name),
            machine.processor,
            str(machine.cores),
            ", ".join(sorted(sets[name])),
            _bandwidth(machine),
        )
        for name, machine in sorted(each.items())
    ]
    return "\n".join(_table(("name", "processor", "cores", "measured with", "reads memory at"), rows))


def speculation(results: Results) -> str:
    rows = []
    for record in results["specbench"]:
        for case in record.figures["cases"]:
            if case["batch"] != 1 or case["context"]:
                continue
            kolm = case["contenders"]
            auto, off = kolm["kolm auto"], kolm["kolm off"]
            others = (kolm.get(f"kolm {name}", {}).get("speedup") for name in ("rest", "lookahead", "eagle3"))
            lowest = min((part["speedup"], kind) for kind, part in auto["kinds"].items() if part["speedup"])
            rows.append(
                (
                    _machine(record.machine),
                    "bfloat16" if "bfloat16" in record.case else "Q4_1",
                    f"{case['temperature']:g}",
                    str(record.subject.max_tokens),
                    f"{off['tokens_per_second']:.0f}",
                    *map(_two, others),
                    f"**{_two(auto['speedup'])}** ± {_two(auto['error'])}",
                    f"{_two(lowest[0])} ({lowest[1]})",
                    _two(auto["acceptance length"]),
                    _link(record),
                )
            )
    head = (
        "machine",
        "weights",
        "T",
        "tokens at most",
        "`off`, tokens/s",
        "`rest`",
        "`lookahead`",
        "`eagle3`",
        "`auto`",
        "its lowest kind",
        "tokens a pass",
        "",
    )
    return "\n".join(_table(head, sorted(rows, key=lambda row: (row[0], row[1] != "Q4_1", row[2]))))


def head(results: Results) -> str:
    """`eagle3` with the bundled head, by machine and temperature."""
    rows = [
        (
            _machine(record.machine),
            f"{case['temperature']:g}",
            _two(eagle3["acceptance length"]),
            _two(eagle3["speedup"]),
            _link(record),
        )
        for record in results["specbench"]
        for case in record.figures["cases"]
        if case["batch"] == 1 and not case["context"] and "bfloat16" not in record.case
        if (eagle3 := case["contenders"].get("kolm eagle3")) is not None
    ]
    titles = ("demo/smollm2/head, `eagle3`", "T", "tokens a pass", "times as fast as `off`", "")
    return "\n".join(_table(titles, sorted(rows)))


def accepted(results: Results) -> str:
    rows = [
        (
            _machine(record.machine),
            f"{each['model']}, `{each['head']}`",
            ", ".join(f"{100 * share:.0f}" for share in each["accept"][:3]) + ", …" * (len(each["accept"]) > 3),
            _two(each["tokens a pass"]),
            _two(each["speedup"]),
            _two(each["a draft step in passes"]),
            _link(record),
        )
        for record in results["accepted"]
        for each in [record.figures]
    ]
    titles = (
        "",
        "shape and head",
        "accepted, %",
        "tokens a pass",
        "times as fast as `off`",
        "a draft step, of `block` a draft, in passes",
        "",
    )
    return "\n".join(_table(titles, rows))


def kinds(results: Results) -> str:
    rows = [
        (
            f"{_machine(record.machine)}, {'bfloat16' if 'bfloat16' in record.case else 'Q4_1'}",
            *(_two(case["contenders"]["kolm auto"]["kinds"].get(kind, {}).get("speedup")) for kind in _KINDS),
        )
        for record in results["specbench"]
        for case in record.figures["cases"]
        if _is(case, temperature=0.0, batch=1)
    ]
    return "\n".join(_table(("`auto` over `off`, T = 0", *_KINDS), rows))


def llama_cpp(results: Results, *, long: bool) -> str:
    """Prompts of 512 tokens, or the longer ones."""
    rows = []
    for record in results["families"]:
        for each in record.figures:
            if (each["prompt"] > 512) != long:
                continue
            rate, ratio = each["a second"], each["kolm is faster by"]
            rows.append(
                (
                    _machine(record.machine),
                    _MODELS.get(each["file"], each["file"]),
                    str(each["prompt"]),
                    _round(rate.get("kolm, tokens")),
                    _round(rate.get("llama.cpp, tokens")),
                    _two(ratio.get("tokens")),
                    _round(rate.get("kolm, prompt")),
                    _round(rate.get("llama.cpp, prompt")),
                    _two(ratio.get("prompt")),
                    _link(record),
                )
            )
    head = (
        "machine",
        "model",
        "prompt",
        "kolm, tokens/s",
        "llama.cpp",
        "ratio",
        "kolm, prompt tokens/s",
        "llama.cpp",
        "ratio",
        "",
    )
    return "\n".join(_table(head, sorted(rows, key=lambda row: (row[0], int(row[2])))))


def passes(results: Results) -> str:
    rows = []
    for record in results["arithmetic"]:
        near, far = (record.figures["milliseconds"][f"{length} tokens before"] for length in (100, 4000))
        name = next(name for name in _INT8 if name in near)
        one, many = near[name], far[name]
        growth = ", ".join(_two(one[rows_] / one["1"]) for rows_ in ("2", "4", "8", "16", "32"))
        rows.append(
            (
                _machine(record.machine),
                _model(record),
                f"{one['1']:.1f}",
                growth,
                _two(near["float32"]["128"] / one["128"]),
                _two(many["1"] / one["1"]),
                _link(record),
            )
        )
    head = (
        "machine",
        "model",
        "1 row, ms",
        "2, 4, 8, 16, 32 rows over 1",
        "128 rows, float32 over int8",
        "1 row after 4,000 tokens over after 100",
        "",
    )
    return "\n".join(_table(head, sorted(rows, key=lambda row: (row[1], row[0]))))


def losses(results: Results) -> str:
    rows = []
    for record in results["arithmetic"]:
        nats, greedy = record.figures.get("nats a token"), record.figures.get("greedy", {})
        for name, value in (nats or {}).items():
            rows.append(
                (
                    _machine(record.machine),
                    _model(record),
                    name,
                    f"{value:.4f}",
                    _percent(greedy.get(name, {}).get("same token")),
                )
            )
    return "\n".join(
        _table(("machine", "model", "arithmetic and cache", "nats a token", "greedy tokens equal to float32's"), rows)
    )


def callers(results: Results, model: str = "") -> str:
    """Servers under callers, of the models whose name begins with `model`."""
    rows = []
    for record in results["load"]:
        if not _model(record).startswith(model):
            continue
        cases = {case["callers"]: case for case in record.figures["cases"]}
        sixteen = cases.get(16)
        rows.append(
            (
                _machine(record.machine),
                _model(record),
                f"{record.figures['server']}, `{record.figures['method']}`"
                + (", long prompts" if record.figures.get("long_prompts") else ""),
                ", ".join(
                    _round(cases[count]["tokens_per_second"]) if count in cases else _DASH for count in (1, 4, 16, 64)
                ),
                _first(sixteen),
                f"{sixteen['inter_token_ms']['p99']:.0f} ms" if sixteen else _DASH,
                str(sum(sum(case["failures"].values()) for case in cases.values())),
                _link(record),
            )
        )
    head = (
        "machine",
        "model",
        "server",
        "tokens/s at 1, 4, 16, 64 callers",
        "first token at 16, median / 99 %",
        "between chunks, 99 %",
        "requests failed",
        "",
    )
    return "\n".join(_table(head, sorted(rows, key=lambda row: (row[1], row[0], row[2]))))


def _later(starts: Sequence[Sequence[float]]) -> str:
    seconds = sorted(wall for wall, _ in starts)
    return f"{seconds[0]:.1f} to {seconds[-1]:.1f} s"


def start(results: Results) -> str:
    rows = [
        (
            _machine(record.machine),
            f"{record.figures['first'][0]:.1f} s",
            _later(record.figures["later"]),
            _link(record),
        )
        for record in results["start"]
    ]
    return "\n".join(_table(("machine", "first start of `kolm up`", "later starts", ""), rows))


def first_start(results: Results) -> str:
    """`start` as a sentence."""
    record = max(results["start"], key=lambda each: each.date)
    first, later = record.figures["first"][0], _later(record.figures["later"])
    return (
        f"`kolm up` with {_model(record)} answers after {first:.1f} s at its first start on a machine, after {later}"
        f" later ({_machine(record.machine)}, {record.machine.cores} cores)."
    )


def identity(results: Results) -> str:
    head = (
        "engine",
        "speculation",
        "at once",
        "requests",
        "changed by speculation",
        "plain differs from plain again",
        "plain differs from plain alone",
    )
    rows = [
        (
            each["engine"],
            each["method"],
            str(each["at once"]),
            str(each["requests"]),
            str(each["changed"]),
            str(each["plain differs from plain again"]),
            str(each["plain differs from plain alone"]),
        )
        for record in results["exactness"]
        for each in record.figures
    ]
    return "\n".join(_table(head, rows))


def identity_of_others(results: Results) -> str:
    """Answers that speculation changed, by engine and method, with 1, 8 and 16 requests at the same time."""
    counts: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}
    for record in results["exactness"]:
        for each in record.figures:
            methods = "all six methods" if each["engine"] == "kolm" else each["method"]
            of = counts.setdefault((each["engine"], methods), {})
            changed, requests = of.get(each["at once"], (0, 0))
            of[each["at once"]] = changed + each["changed"], requests + each["requests"]
    rows = [
        (*key, *("{} of {}".format(*of[count]) if count in of else _DASH for count in (1, 8, 16)))
        for key, of in counts.items()
    ]
    return "\n".join(_table(("engine", "speculation", "1 request", "8", "16 at the same time"), rows))


def verdicts(results: Results) -> str:
    """Verdicts on honest answers, and tokens until a fault of speculation is found, by engine and method."""
    rows = []
    for each in (each for record in results["verdicts"] for each in record.figures):
        honest = [case for case in each["cases"] if not case["share replaced"]]
        faulty = [case for case in each["cases"] if case["share replaced"]]
        runs = [run for case in faulty for run in case["tokens until DEVIATION"]]
        found, of = (sum(case[name] for case in faulty) for name in ("faulty found", "faulty"))
        counts = (sum(case[name] for case in honest) for name in ("tokens", "answers", "SAME", "UNSTABLE", "DEVIATION"))
        until = _count(round(sum(runs) / found)) if found else _DASH
        shown = f"{found} of {of}" if faulty else _DASH
        rows.append((each["engine"], each["method"], *map(_count, counts), shown, until))
    head = ("engine", "speculation", "honest tokens", "answers", "`SAME`", "`UNSTABLE`", "`DEVIATION`",
            "faulty answers found", "tokens read for each")  # fmt: skip
    return "\n".join(_table(head, rows))


def lies(results: Results) -> str:
    rows = [
        (
            name,
            str(each["outputs"]),
            f"{each['tokens']:,}",
            str(each["drawn"]["inconsistent"]),
            _count(each["drawn"]["tokens until found"]),
            _count(each["drawn"]["most tokens until found"]),
            str(each["together"]["inconsistent"]),
            _count(each["together"]["tokens until found"]),
        )
        for record in results["lies"]
        for name, each in record.figures["cases"].items()
    ]
    head = (
        "case",
        "outputs",
        "tokens",
        "found by default",
        "tokens until found",
        "at most",
        "without draws",
        "tokens until found",
    )
    return "\n".join(_table(head, rows))


def ledger(results: Results) -> str:
    rows = [
        (
            _machine(record.machine),
            store,
            f"{each['streaming']['appends_per_second']:,} ({each['streaming']['p99_ms']:.0f} ms)",
            next(
                f"{case['appends_per_second']:,} ({case['p99_ms']:.0f} ms)"
                for case in each["clients"]
                if case["clients"] == 64
            ),
            ", ".join(f"{size['streaming']['appends_per_second']:,}" for size in each["growth"]),
            _link(record),
        )
        for record in results["ledger"]
        for store, each in record.figures.items()
    ]
    head = (
        "machine",
        "store",
        "receipts/s, one stream (99 %)",
        "64 callers one by one (99 %)",
        "one stream into a log of 10³, 10⁴, …",
        "",
    )
    return "\n".join(_table(head, rows))


def bundle(results: Results) -> str:
    rows = [
        (
            _machine(record.machine),
            f"{each['receipts']:,}",
            f"{each['megabytes']:.0f} MB",
            f"{each['export_seconds']:.0f} s",
            f"{each['verify_seconds']:.0f} s",
            f"{each['peak_megabytes']} MB",
            _link(record),
        )
        for record in results["bundle"]
        for each in [record.figures]
    ]
    return "\n".join(_table(("machine", "receipts", "bundle", "export", "`kolm verify`", "its memory", ""), rows))


def fleet(results: Results) -> str:
    """The rates of one log, as a list."""
    logs = [
        f"- One log on {_machine(record.machine)}, {record.machine.cores} cores, takes"
        f" {each['streaming']['appends_per_second']:,} receipts/s from one stream into {store} ({_link(record)})."
        for record in results["ledger"]
        for store, each in record.figures.items()
    ]
    bundles = [
        f"- `kolm verify` reads a bundle of {figures['receipts']:,} receipts, {figures['megabytes']:.0f} MB, in"
        f" {figures['verify_seconds']:.0f} s on {_machine(record.machine)} ({_link(record)})."
        for record in results["bundle"]
        for figures in [record.figures]
    ]
    return "\n".join([*logs, *bundles])


@dataclass(frozen=True, slots=True)
class Target:
    """An aim, and the measured values by machine. `at_least`: larger is better."""

    aim: str
    bound: float
    at_least: bool
    unit: str
    measured: Sequence[tuple[float, str]]

    def row(self) -> Sequence[str]:
        best, worst = max(self.measured), min(self.measured)
        if not self.at_least:
            best, worst = worst, best
        met = [(value >= self.bound) == self.at_least or value == self.bound for value, _ in self.measured]
        return (self.aim, *map(self._shown, (best, worst)), f"{sum(met)} of {len(met)}")

    def _shown(self, value: tuple[float, str]) -> str:
        number = f"{value[0]:.0f}" if self.unit else f"{value[0]:.2f}"
        return f"{number}{self.unit} ({value[1]})"


def targets(results: Results) -> str:
    """The aims, with the best and the worst measurement of each."""
    rows = [each.row() for each in (*_speculation_targets(results), *_pass_and_caller_targets(results))]
    return "\n".join(_table(("aim", "best", "worst", "met"), rows))


def _speculation_targets(results: Results) -> Iterator[Target]:
    cases = [
        (record, case["temperature"], case["contenders"]["kolm auto"])
        for record in results["specbench"]
        for case in record.figures["cases"]
        if case["batch"] == 1 and not case["context"]
    ]
    for aim, bound, temperature, weights in (
        ("`auto`, int8, T = 0: 1.6 times `off`", 1.6, 0.0, "Q4_1"),
        ("`auto`, bfloat16, T = 0: 2.2 times", 2.2, 0.0, "bfloat16"),
        ("`auto`, int8, T = 1: 1.15 times", 1.15, 1.0, "Q4_1"),
    ):
        speedups = [
            (auto["speedup"], _machine(record.machine))
            for record, drawn, auto in cases
            if drawn == temperature and ("bfloat16" in record.case) == (weights == "bfloat16")
        ]
        yield Target(aim, bound, True, "", speedups)
    kinds = [
        (part["speedup"], f"{kind}, T = {drawn:g}")
        for record, drawn, auto in cases
        for kind, part in auto["kinds"].items()
        if part["speedup"]
    ]
    yield Target("every kind of question: 0.98 times", 0.98, True, "", kinds)


def _pass_and_caller_targets(results: Results) -> Iterator[Target]:
    growths = []
    for record in results["arithmetic"]:
        near = record.figures["milliseconds"]["100 tokens before"]
        one = near[next(name for name in _INT8 if name in near)]
        growths.append((one["8"] / one["1"], _machine(record.machine)))
    yield Target("8 rows: at most 1.8 times the time of one", 1.8, False, "", growths)
    sixteen = [
        (case, f"{_machine(record.machine)}, {record.subject.model}")
        for record in results["load"]
        if record.figures["server"] == "kolm"
        for case in record.figures["cases"]
        if case["callers"] == 16
    ]
    for aim, bound, figure in (
        ("16 callers, first token, 99 %: 1,500 ms", 1500.0, "first_token_ms"),
        ("16 callers, between chunks, 99 %: 100 ms", 100.0, "inter_token_ms"),
    ):
        yield Target(aim, bound, False, " ms", [(case[figure]["p99"], where) for case, where in sixteen])


BLOCKS: Mapping[str, Callable[[Results], str]] = {
    "readme": readme,
    "machines": machines, "speculation": speculation, "kinds": kinds,
    "llama-cpp": lambda results: llama_cpp(results, long=False),
    "llama-cpp long": lambda results: llama_cpp(results, long=True),
    "passes": passes, "losses": losses, "callers": callers,
    "callers smollm2": lambda results: callers(results, "SmolLM2"), "start": start, "identity": identity, "lies": lies,
    "verdicts": verdicts,
    "ledger": ledger, "bundle": bundle, "head": head, "accepted": accepted, "identity of others": identity_of_others,
    "first start": first_start, "fleet": fleet, "targets": targets,
}  # fmt: skip


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(head), "|" + "---|" * len(head), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _is(case: Mapping[str, Any], *, temperature: float, batch: int) -> bool:
    return case["temperature"] == temperature and case["batch"] == batch and not case["context"]


def _machine(machine: Machine) -> str:
    return f"{_NAMES.get(machine.name, machine.name)}, {_SETS.get(machine.instruction_set, machine.instruction_set)}"


def _bandwidth(machine: Machine) -> str:
    return "not measured" if machine.bandwidth is None else f"{machine.bandwidth / 1e9:.0f} GB/s"


def _model(record: Measurement) -> str:
    return _MODELS.get(record.subject.model or "", record.subject.model or "")


def _link(record: Measurement) -> str:
    return f"[JSON]({_FOLDER}{record.name}.json)"


def _drafted(each: Mapping[str, Any]) -> tuple[str, str, str]:
    return each["auto"], each["plain"], f"**{each['speedup']:.2f}** ± {each['error']:.2f}"


def _pair(peer: Mapping[str, Any], what: str) -> tuple[str, str, str]:
    return _ratio(peer["a second"][f"kolm, {what}"], peer["a second"][f"llama.cpp, {what}"])


def _ratio(mine: float, its: float) -> tuple[str, str, str]:
    return _round(mine), _round(its), f"**{mine / its:.1f}**"


def _failed(cases: Sequence[Mapping[str, Any]]) -> str:
    failed = sum(sum(case["failures"].values()) for case in cases)
    return f"{failed} of {failed + sum(case['requests'] for case in cases)}"


def _callers(case: Mapping[str, Any]) -> str:
    return "1 caller" if case["callers"] == 1 else f"{case['callers']} callers"


def _first(case: Mapping[str, Any] | None) -> str:
    return f"{case['first_token_ms']['p50']:.0f} / {case['first_token_ms']['p99']:.0f} ms" if case else _DASH


def _two(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"


def _round(value: float | None) -> str:
    if value is None:
        return _DASH
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return _DASH if share is None else f"{100 * share:.1f} %"


def _count(value: int | None) -> str:
    return _DASH if value is None else f"{value:,}"
