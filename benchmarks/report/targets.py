"""The table of aims, each with its best and its worst measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.report.drafts import cases_alone, storage
from benchmarks.report.tables import INT8, Results, machine_name, table


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
    rows = [each.row() for each in (*_of_speculation(results), _of_passes(results), *_of_callers(results))]
    return table("aim | best | worst | met", rows)


def _of_speculation(results: Results) -> Iterator[Target]:
    cases = [(record, case["temperature"], case["contenders"]["kolm auto"]) for record, case in cases_alone(results)]
    for aim, bound, temperature, weights in (
        ("`auto`, int8, T = 0: 1.6 times `off`", 1.6, 0.0, "Q4_1"),
        ("`auto`, bfloat16, T = 0: 2.2 times", 2.2, 0.0, "bfloat16"),
        ("`auto`, int8, T = 1: 1.15 times", 1.15, 1.0, "Q4_1"),
    ):
        speedups = [
            (auto["speedup"], machine_name(record.machine))
            for record, drawn, auto in cases
            if drawn == temperature and storage(record) == weights
        ]
        yield Target(aim, bound, True, "", speedups)
    kinds = [
        (part["speedup"], f"{kind}, T = {drawn:g}")
        for _, drawn, auto in cases
        for kind, part in auto["kinds"].items()
        if part["speedup"]
    ]
    yield Target("every kind of question: 0.98 times", 0.98, True, "", kinds)


def _of_passes(results: Results) -> Target:
    growths = []
    for record in results["arithmetic"]:
        near = record.figures["milliseconds"]["100 tokens before"]
        one = near[next(name for name in INT8 if name in near)]
        growths.append((one["8"] / one["1"], machine_name(record.machine)))
    return Target("8 rows: at most 1.8 times the time of one", 1.8, False, "", growths)


def _of_callers(results: Results) -> Iterator[Target]:
    sixteen = [
        (case, f"{machine_name(record.machine)}, {record.subject.model}")
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
