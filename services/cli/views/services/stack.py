"""One screen of the whole stack, and what it does a second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from services.cli.jobs.running.rates import Rates
from services.cli.jobs.running.stack import Stack
from services.cli.terminal.output import MARKS, OUTCOME_STYLES, facts, table
from services.client.health import Samples


def stack_json(stack: Stack) -> dict[str, Any]:
    """For programs; figures of a server that does not tell are null."""
    generation, ledger, auditor = (stack.of(name) for name in ("generation", "ledger", "auditor"))
    figures: dict[str, dict[str, Any]] = {
        "generation": {
            "running": generation.total("vllm:num_requests_running"),
            "waiting": generation.total("vllm:num_requests_waiting"),
            "outbox": generation.total("kolm_outbox_pending"),
        },
        "ledger": {
            "halts_open": ledger.total("kolm_ledger_open_halts"),
            "entries": ledger.total("kolm_ledger_entries"),
            "checkpoint_age_seconds": ledger.total("kolm_ledger_checkpoint_age_seconds"),
        },
        "auditor": {
            "obligations": auditor.by("kolm_auditor_obligations", "state"),
            "verdicts": auditor.by("kolm_auditor_verdicts_total", "outcome"),
        },
    }
    return {
        "serving": stack.serving,
        "broken": list(stack.broken),
        "servers": [
            {"name": one.name, "address": one.address, "serving": one.serving, "version": one.version,
             "problem": one.problem} for one in stack.servers
        ],
        "model": stack.model and stack.model.model,
        "profile_proven": stack.model and stack.model.probe_passed,
        **{
            what: figure if stack.tells(name) else None
            for name, own in figures.items() for what, figure in own.items()
        },
    }  # fmt: skip


def stack_view(stack: Stack) -> RenderableType:
    """The servers in a table, and below it what matters about the rest."""
    problem = Text(f"✗ {', '.join(stack.broken)}", style="bold red") if stack.broken else None
    return Group(_servers(stack), facts(*_facts(stack)), *([problem] if problem else []))


def _servers(stack: Stack) -> Table:
    made = table("server", "", "address", "version", "up", "memory")
    now = time.time()
    for one in stack.servers:
        if one.problem is not None:
            made.add_row(one.name, MARKS[one.serving], escape(one.address), escape(one.problem), "", "")
            continue
        memory = one.samples.total("process_resident_memory_bytes") / 2**20
        up = "" if (seconds := one.seconds_up(now)) is None else duration(seconds)
        made.add_row(one.name, MARKS[one.serving], escape(one.address), one.version, up, f"{memory:,.0f} MiB")
    return made


def _facts(stack: Stack) -> Iterator[tuple[str, str]]:
    """Nothing about a server that does not tell: a zero would be taken for an answer."""
    if stack.model is not None:
        heads = [head.name or "a folder's head" for head in stack.model.heads if not head.withdrawn]
        drafting = f" with {', '.join(heads)}" if heads else ""
        proven = "proven" if stack.model.probe_passed else "[bold red]unproven[/]: one row a pass, no speculation"
        yield "model", f"{escape(stack.model.model)}, profile {proven}"
        yield "methods", f"{', '.join(stack.model.methods)}{escape(drafting)}"
    for name, rows in (("generation", _generation), ("ledger", _ledger), ("auditor", _auditor)):
        if stack.tells(name):
            yield from rows(stack.of(name))


def _generation(told: Samples) -> Iterator[tuple[str, str]]:
    running, waiting = (told.total(f"vllm:num_requests_{state}") for state in ("running", "waiting"))
    pending, refused = told.total("kolm_outbox_pending"), told.total("kolm_outbox_refused")
    yield "requests", f"{running:.0f} running, {waiting:.0f} waiting"
    yield "outbox", f"{pending:.0f} receipts wait for the ledger" + (f", {refused:.0f} refused" if refused else "")
    yield "halted", ", ".join(told.by("kolm_halted", "method")) or "nothing"


def _ledger(told: Samples) -> Iterator[tuple[str, str]]:
    age = told.total("kolm_ledger_checkpoint_age_seconds")
    yield "log", f"{told.total('kolm_ledger_entries'):,.0f} entries, checkpoint of {duration(age)} ago"
    yield "halts", f"{told.total('kolm_ledger_open_halts'):.0f} open"
    lags = told.by("kolm_ledger_witness_lag_entries", "witness")
    if lags:
        yield "witnesses", ", ".join(f"{escape(name)} {lag:.0f} behind" for name, lag in lags.items())


def _auditor(told: Samples) -> Iterator[tuple[str, str]]:
    open_ = told.by("kolm_auditor_obligations", "state")
    yield "audit", ", ".join(f"{open_.get(state, 0):.0f} {state}" for state in ("owed", "overdue", "undrawn"))
    verdicts = told.by("kolm_auditor_verdicts_total", "outcome")
    counts = (
        f"[{OUTCOME_STYLES.get(name, '')}]{count:.0f} {name}[/]" if count else f"0 {name}"
        for name, count in verdicts.items()
    )
    yield "verdicts", f"{', '.join(counts)} since the auditor's start"


def top_view(stack: Stack, done: Rates) -> RenderableType:
    """A screen that changes: what is under way, and what was done since the last one."""
    generation = stack.of("generation")
    running, waiting = (generation.total(f"vllm:num_requests_{state}") for state in ("running", "waiting"))
    methods = ", ".join(f"{method} {count:.0f}" for method, count in done.passes.items() if count) or "–"
    cache = generation.total("vllm:kv_cache_usage_perc")
    rows = (
        ("tokens", f"{done.tokens:.0f}/s, {done.requests:.1f} requests/s"),
        ("requests", f"{running:.0f} running, {waiting:.0f} waiting, cache {cache:.0%}"),
        ("latency", f"first token {_ms(done.first_token)}, next {_ms(done.next_token)}"),
        ("drafts", f"{'–' if done.acceptance is None else format(done.acceptance, '.0%')} accepted"),
        ("passes/s", methods),
        ("receipts", f"{generation.total('kolm_outbox_pending'):.0f} in the outbox, {done.entries:.1f} entries/s"),
        ("writes", f"{'–' if done.batch is None else format(done.batch, '.1f')} a batch, commit {_ms(done.commit)}"),
        ("audit", f"{done.verdicts:.1f} verdicts/s, {_open(stack)}"),
    )
    away = [one for one in stack.servers if not one.serving]
    problems = [*(f"{one.name} does not answer" for one in away), *stack.broken]
    state = Text(f"✗ {', '.join(problems)}", style="bold red") if problems else Text("✓ all serve", style="green")
    return Group(state, facts(*rows))


def top_line(stack: Stack, done: Rates) -> str:
    """The same in one line of at most 80 columns, for a pipe."""
    generation = stack.of("generation")
    running, waiting = (generation.total(f"vllm:num_requests_{state}") for state in ("running", "waiting"))
    accepted = "–" if done.acceptance is None else f"{done.acceptance:.0%}"
    pending = generation.total("kolm_outbox_pending")
    state = "ok" if stack.serving and not stack.broken else "BROKEN" if stack.serving else "AWAY"
    return (
        f"{time.strftime('%H:%M:%S')} {state} {done.tokens:.0f} tok/s {running:.0f} run {waiting:.0f} wait "
        f"ttft {_ms(done.first_token)} acc {accepted} outbox {pending:.0f} {done.entries:.0f} entries/s"
    )


def _open(stack: Stack) -> str:
    states = stack.of("auditor").by("kolm_auditor_obligations", "state")
    return f"{states.get('owed', 0):.0f} owed, {states.get('overdue', 0):.0f} overdue"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s" if seconds >= 10 else f"{1e3 * seconds:.0f} ms"


def duration(seconds: float) -> str:
    """`42 s`, `3 min`, `5 h 12 min`, `4 d 7 h`."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 1:
        return f"{seconds:.0f} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if days < 1 else f"{days} d {hours % 24} h"
