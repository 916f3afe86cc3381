"""The block of README.md: one machine, one commit, one head, and a line for the range over other machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.measurement import Machine, Measurement
from benchmarks.report.tables import Results, first_token, is_alone, machine_name, model_name, rounded, table


def readme(results: Results) -> str:
    record = max(results["readme"], key=lambda each: each.date)
    figures = record.figures
    decoding, callers, peers = figures["decoding"], figures["callers"], figures["callers_peer"]
    most, its_most = callers[-1], peers[-1]
    rates = ((mine["tokens_per_second"], its["tokens_per_second"]) for mine, its in zip(callers, peers, strict=True))
    drafts, plain, llama = "with drafts", "plain", "llama.cpp"
    rows = [
        ("whole requests, greedy, tokens/s", drafts, "kolm, plain", *_drafted(decoding["greedy"])),
        ("whole requests, T = 1, tokens/s", drafts, "kolm, plain", *_drafted(decoding["t1"])),
        ("plain decoding alone, tokens/s", plain, llama, *_pair(figures["peer"], "tokens")),
        ("prompt of 512 tokens, tokens/s", plain, llama, *_pair(figures["peer"], "prompt")),
        *(
            (f"{_callers(case)}, tokens/s", drafts, llama, *_ratio(*pair))
            for case, pair in zip(callers, rates, strict=True)
        ),
        (f"{_callers(most)}, first token, median / 99 %", drafts, llama, *_first_tokens(most, its_most)),
        ("requests failed", drafts, llama, _failed(callers), _failed(peers), ""),
    ]
    shown = [(what, f"{mine} {name}", f"{its} {other}", ratio) for what, name, other, mine, its, ratio in rows]
    share = 100 * figures["replay"]["ratio"]
    replay = f"Replaying 128 tokens takes {share:.0f} % of the time of decoding them without drafts."
    block = table(" | kolm | compared with | ratio", shown)
    return f"{_conditions(record)}\n\n{block}\n\n{replay} {_others(results, record.machine)}"


def _conditions(record: Measurement) -> str:
    machine, subject = record.machine, record.subject
    return (
        f"{machine_name(machine)}, {machine.cores} cores; {model_name(subject.model)}; commit `{record.commit}`,"
        f" {record.date[:10]}; head `{(subject.head_digest or '')[7:19]}`; {(subject.questions or '').split()[0]}"
        f" questions, at most {subject.max_tokens} tokens an answer; llama.cpp {record.figures['peer']['version']} in"
        " the same run, same file and cores. Whole requests include the prompt; their ratio is the geometric mean over"
        " kinds of questions ± its standard error. Callers send other requests, streamed chats of 64 tokens, greedy, to"
        " `kolm up` without audits and to llama-server. `make bench-readme` measures it."
    )


def _others(results: Results, machine: Machine) -> str:
    gains = [
        (case["contenders"]["kolm auto"]["speedup"], record.machine)
        for record in results.get("specbench", ())
        for case in record.figures["cases"]
        if record.machine.slug != machine.slug and record.case == "greedy"
        if case["temperature"] == 0.0 and is_alone(case)
    ]
    if not gains:
        return ""
    low, high = min(gains, key=lambda each: each[0]), max(gains, key=lambda each: each[0])
    return (
        f"On other machines kolm with drafts is {low[0]:.2f} ({machine_name(low[1])}) to"
        f" {high[0]:.2f} ({machine_name(high[1])}) times as fast as plain decoding, greedy"
        " ([docs/benchmarks.md](docs/benchmarks.md))."
    )


def _drafted(each: Mapping[str, Any]) -> tuple[str, str, str]:
    return each["auto"], each["plain"], f"**{each['speedup']:.2f}** ± {each['error']:.2f}"


def _pair(peer: Mapping[str, Any], what: str) -> tuple[str, str, str]:
    return _ratio(peer["a second"][f"kolm, {what}"], peer["a second"][f"llama.cpp, {what}"])


def _ratio(mine: float, its: float) -> tuple[str, str, str]:
    return rounded(mine), rounded(its), f"**{mine / its:.1f}**"


def _first_tokens(mine: Mapping[str, Any], its: Mapping[str, Any]) -> tuple[str, str, str]:
    """Times to the first token of kolm and the peer, and their ratio: above 1 if kolm is faster."""
    median, slowest = (its["first_token_ms"][each] / mine["first_token_ms"][each] for each in ("p50", "p99"))
    return first_token(mine), first_token(its), f"**{median:.1f} / {slowest:.1f}**"


def _failed(cases: Sequence[Mapping[str, Any]]) -> str:
    failed = sum(sum(case["failures"].values()) for case in cases)
    return f"{failed} of {failed + sum(case['requests'] for case in cases)}"


def _callers(case: Mapping[str, Any]) -> str:
    return "1 caller" if case["callers"] == 1 else f"{case['callers']} callers"
