"""Pages show the figures of the result files, and each result file has the origin of its figures."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.machine import RESULTS
from benchmarks.measurement import Machine, Measurement, MeasurementInvalid, Subject, measurements
from benchmarks.report import audits, pages, servers
from benchmarks.report.targets import Target

_MACHINE = Machine("zen4", "AMD EPYC, family 25, model 17", 2, "avx2", 2.5e10)


def measured(**changes: object) -> Measurement:
    values: dict[str, object] = {
        "benchmark": "bundle", "case": "", "commit": "0123456789ab", "date": "2026-11-29T10:00Z", "version": "0.1.0",
        "command": "python -m benchmarks.ledger.bundle", "machine": _MACHINE, "subject": Subject(),
        "figures": {"receipts": 5, "megabytes": 1.0, "export_seconds": 1.0, "verify_seconds": 1.0, "peak_megabytes": 9},
    }  # fmt: skip
    return Measurement(**{**values, **changes})  # type: ignore[arg-type]


def test_pages_show_what_the_result_files_hold() -> None:
    for page, text in pages.render().items():
        assert page.read_text() == text, f"{page.name} differs: run `python -m benchmarks report`"


def test_every_kept_result_is_shown_and_complete() -> None:
    for each in measurements():
        assert each.benchmark in {"calls", "readme", *pages.by_benchmark(measurements())}
        assert all((each.commit, each.date, each.version, each.command)), each.name
        assert each.machine.cores, each.name


def test_a_written_measurement_is_read_back(tmp_path: Path) -> None:
    path = measured().write(tmp_path)
    assert path.name == "bundle-zen4-avx2.json"
    assert list(measurements(tmp_path)) == [measured()]


def test_a_later_run_on_the_same_machine_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    measured().write(tmp_path)
    measured(date="2026-11-30T10:00Z").write(tmp_path)
    assert [each.date for each in measurements(tmp_path)] == ["2026-11-30T10:00Z"]


@pytest.mark.parametrize("member", [each.name for each in fields(Measurement)])
def test_a_result_file_without_its_origin_is_refused(member: str, tmp_path: Path) -> None:
    path = measured().write(tmp_path)
    document = json.loads(path.read_text())
    del document[member]
    path.write_text(json.dumps(document))
    with pytest.raises(MeasurementInvalid, match=path.name):
        list(measurements(tmp_path))


def test_a_result_file_is_named_for_what_it_holds(tmp_path: Path) -> None:
    measured().write(tmp_path).rename(tmp_path / "bundle-zen5-avx2.json")
    with pytest.raises(MeasurementInvalid, match="bundle-zen4-avx2"):
        list(measurements(tmp_path))


def test_every_block_of_the_pages_can_be_rendered() -> None:
    assert RESULTS.is_dir()
    with pytest.raises(KeyError):
        pages.render_text("<!-- benchmarks: unknown -->\n<!-- end -->", {})


@pytest.mark.parametrize(
    ("at_least", "best", "worst", "met"),
    [(True, "2.00 (b)", "1.00 (a)", "2 of 3"), (False, "1.00 (a)", "2.00 (b)", "2 of 3")],
)
def test_a_target_is_met_at_its_bound_and_on_its_good_side(at_least: bool, best: str, worst: str, met: str) -> None:
    target = Target("aim", 1.5, at_least, "", [(1.0, "a"), (2.0, "b"), (1.5, "c")])
    assert tuple(target.row()) == ("aim", best, worst, met)


def test_answers_that_speculation_changed_are_added_up_over_the_methods_of_kolm() -> None:
    each = {"engine": "kolm", "method": "rest", "at once": 1, "requests": 24, "changed": 0}
    figures = [
        each,
        {**each, "method": "draft", "changed": 1},
        {**each, "engine": "vllm 1", "requests": 16, "changed": 2},
        {**each, "engine": "a library 1"},
    ]
    table = audits.identity_of_others({"exactness": [measured(benchmark="exactness", figures=figures)]})
    assert [line.split(" | ")[2:] for line in table.splitlines()[2:]] == [
        ["1 of 48", "–", "– |"],
        ["2 of 16", "–", "– |"],
    ]


def test_verdicts_are_added_up_over_cases_and_a_fault_has_the_tokens_until_it_is_found() -> None:
    """Older files have no member `replaced of`, and the oldest, of begun answers, no `begun`."""
    honest = {"share replaced": 0.0, "tokens": 1000, "answers": 12, "SAME": 10, "UNSTABLE": 2, "DEVIATION": 0}
    counts = {
        "share replaced": 0.02, "callers": 8, "answers": 3, "tokens": 400, "tokens drafted": 200, "accepted": 150,
        "UNSTABLE": 1, "faulty": 2,
    }  # fmt: skip
    kinds = ({}, {"begun": True}, {"begun": False}, {"replaced of": "accepted"}, *[{"replaced of": "drafted"}] * 2)
    faulty = [
        {**counts, **kind, "faulty found": len(runs) - 1, "tokens until DEVIATION": runs}
        for kind, runs in zip(kinds, ([5], [30, 0], [170, 230], [9, 1], [100, 200, 60], [240]), strict=True)
    ]
    figures = [{"engine": "vllm/1", "method": "n-gram", "cases": [honest, honest, *faulty]}]
    results = {"verdicts": [measured(benchmark="verdicts", figures=figures)]}
    cells = audits.verdicts(results).splitlines()[-1].split(" | ")
    assert cells[2:] == ["2,000", "20", "4", "0", "2 of 4", "300 |"]
    each = [row.split(" | ")[4:] for row in audits.faults(results).splitlines()[2:]]
    assert [row[0] for row in each] == [
        "2% of accepted, begun answers", "2% of accepted, begun answers", "2% of accepted", "2% of accepted",
        "2% of drafted", "2% of drafted",
    ]  # fmt: skip
    assert each[4][1:] == ["3", "400", "200", "150", "1", "2 of 2", "180 |"]
    assert each[0][-2:] == ["0 of 2", "– |"]


def test_rates_are_compared_with_the_fastest_peer() -> None:
    rates = {"kolm, tokens": 30.0, "llama.cpp, tokens": 20.0, "ik_llama.cpp, tokens": 25.0, "kolm, prompt": 9.0}
    record = measured(benchmark="families", figures=[{"file": "a.gguf", "prompt": 512, "a second": rates}])
    row = servers.llama_cpp({"families": [record]}, long=False).splitlines()[-1]
    assert row.split(" | ")[3:7] == ["30/20/25 (**1.20**)", "–", "–", "9.0"]
