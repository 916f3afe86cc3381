"""`kolm status`: the whole stack on one screen, once or live."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from json import dumps
from typing import Annotated, Any

import typer

from services.cli.frame import exits, options
from services.cli.frame.output import answer, stdout_console
from services.cli.frame.process import stop_signals
from services.cli.frame.views import MARKS, OUTCOME_STYLES, Column, Line, Styled, View, facts, joined, table
from services.client.channel import Connection
from services.client.errors import DeadlineExceeded, KolmError, Unavailable
from services.client.generation.completion import ModelInfo
from services.client.generation.runtime import Runtime
from services.client.health import Samples, read_metrics


def status(
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    auditor: options.Auditor = options.AUDITOR,
    registry: options.Registry = options.REGISTRY,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Judge only whether every server serves (else 5) and the numerics profile is proven (else 3).",
        ),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Live: what the stack does a second. In a pipe a line each time, or an object."),
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600.0, help="Seconds between two lines of --watch.")] = 2.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="Lines of --watch before it ends. Default: until Ctrl-C.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show servers, model, halts, receipts on their way, log and audit. Exit code 5 if a server does not serve or
    does not tell, 3 if a promise does not hold: profile unproven, halts open, deviations, overdue verdicts, refused
    receipts, a fork.
    """
    if watch and check:
        raise exits.UsageError("--watch: goes on and judges nothing; use it without --check")
    if count is not None and not watch:
        raise exits.UsageError("--count: counts the lines of --watch, which is not given")

    addresses = {"generation": generation, "ledger": ledger, "auditor": auditor, "registry": registry}
    if watch:
        return _watch(addresses, every, count, json)

    stack = read_stack(addresses)
    answer(json, stack.document(), _stack_view)
    if not (stack.answering if check else stack.complete):
        raise typer.Exit(exits.UNAVAILABLE)
    raise typer.Exit(exits.VERIFICATION_FAILED if (stack.unproven if check else stack.broken) else exits.OK)


def _watch(addresses: dict[str, str], every: float, count: int | None, json: bool) -> None:
    with _shown(as_json=json) as show:
        for before, after in _polls(addresses, every, count):
            show(after.document() | {"rates": asdict(rates(before, after))})


_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Server:
    """One server. `problem` says why there are no samples, None where there are."""

    name: str
    address: str
    serving: bool
    samples: Samples
    problem: str | None = None
    read_at: float = 0.0

    @property
    def version(self) -> str:
        return next(iter(self.samples.by("kolm_build_info", "version")), "")

    def document(self) -> dict[str, Any]:
        started = self.samples.total("process_start_time_seconds")
        return {
            "name": self.name,
            "address": self.address,
            "serving": self.serving,
            "version": self.version,
            "problem": self.problem,
            "seconds_up": time.time() - started if started else None,
            "memory_bytes": self.samples.total("process_resident_memory_bytes"),
        }


@dataclass(frozen=True)
class Stack:
    """Every server that was asked, and the model, None where the generation server does not tell."""

    servers: tuple[Server, ...]
    model: ModelInfo | None

    def of(self, name: str) -> Samples:
        return next(server.samples for server in self.servers if server.name == name)

    def tells(self, name: str) -> bool:
        """Whether it let itself be read; its figures mean nothing otherwise."""
        return any(server.name == name and server.problem is None for server in self.servers)

    @cached_property
    def complete(self) -> bool:
        """Whether all serve and let themselves be read."""
        return self.serving and all(server.problem is None for server in self.servers)

    @cached_property
    def serving(self) -> bool:
        return all(server.serving for server in self.servers)

    @cached_property
    def answering(self) -> bool:
        """Whether all serve, and the model's numerics are known: what a probe asks."""
        return self.serving and self.model is not None

    @cached_property
    def unproven(self) -> bool:
        return self.model is not None and self.model.engine is None and not self.model.probe_passed

    @cached_property
    def broken(self) -> tuple[str, ...]:
        """Promises that do not hold at the moment, each in a few words."""
        ledger, auditor = self.of("ledger"), self.of("auditor")
        counts = (
            (auditor.total("kolm_auditor_verdicts_total", outcome="DEVIATION"), "deviations found"),
            (ledger.total("kolm_ledger_open_halts"), "halts open"),
            (auditor.total("kolm_auditor_obligations", state="overdue"), "verdicts overdue"),
            (self.of("generation").total("kolm_outbox_refused"), "receipts refused by the ledger"),
            (_accusers(ledger), "witnesses saw another history of the log"),
        )
        unproven = ("numerics profile unproven",) if self.unproven else ()
        stuck = ("the ledger cannot write",) if 0 in ledger.by("kolm_ledger_takes_entries", "").values() else ()
        return (*unproven, *stuck, *(f"{count:.0f} {what}" for count, what in counts if count))

    def document(self) -> dict[str, Any]:
        """Figures of a server that does not tell are null: a zero would be taken for an answer."""
        generation, ledger, auditor = (self.of(name) for name in ("generation", "ledger", "auditor"))
        figures: dict[str, dict[str, Any]] = {
            "generation": {
                "running": generation.total("vllm:num_requests_running"),
                "waiting": generation.total("vllm:num_requests_waiting"),
                "cache_used": generation.total("vllm:kv_cache_usage_perc"),
                "outbox": generation.total("kolm_outbox_pending"),
                "outbox_refused": generation.total("kolm_outbox_refused"),
                "halted": list(generation.by("kolm_halted", "method")),
            },
            "ledger": {
                "halts_open": ledger.total("kolm_ledger_open_halts"),
                "entries": ledger.total("kolm_ledger_entries"),
                "checkpoint_age_seconds": ledger.total("kolm_ledger_checkpoint_age_seconds"),
                "witness_lag_entries": ledger.by("kolm_ledger_witness_lag_entries", "witness"),
            },
            "auditor": {
                "obligations": auditor.by("kolm_auditor_obligations", "state"),
                "verdicts": auditor.by("kolm_auditor_verdicts_total", "outcome"),
            },
        }
        model = self.model
        return {
            "serving": self.serving,
            "broken": list(self.broken),
            "servers": [server.document() for server in self.servers],
            "model": model and model.model,
            "engine": model and model.engine,
            "profile_proven": model and (model.probe_passed if model.engine is None else None),
            "methods": model and list(model.methods),
            "heads": model and [head.name for head in model.heads if not head.withdrawn],
            **{
                what: figure if self.tells(name) else None
                for name, own in figures.items()
                for what, figure in own.items()
            },
        }


def _accusers(ledger: Samples) -> int:
    return list(ledger.by("kolm_ledger_witness_silent", "witness").values()).count(2)


def read_stack(addresses: Mapping[str, str]) -> Stack:
    """Ask the servers, by name, side by side. Never raises for one that does not answer."""
    with ThreadPoolExecutor(len(addresses)) as pool:
        servers = tuple(pool.map(_read, addresses, addresses.values()))
    return Stack(servers, _model(addresses["generation"]) if servers[0].serving else None)


def _read(name: str, address: str) -> Server:
    with closing(Connection(address)) as connection:
        try:
            serving = connection.serving(timeout=_SECONDS)
            samples = read_metrics(connection, _SECONDS)
        except (Unavailable, DeadlineExceeded):
            return Server(name, address, False, Samples(), "does not answer, or is stopping")
        except KolmError as error:
            return Server(name, address, serving, Samples(), error.message)
        return Server(name, address, serving, samples, read_at=time.monotonic())


def _model(address: str) -> ModelInfo | None:
    try:
        with Runtime.connect(address) as runtime:
            return runtime.model_info(timeout=_SECONDS)
    except KolmError:
        return None


@dataclass(frozen=True, slots=True)
class Rates:
    """A second's worth of tokens, requests and entries, and averages over the time between; None where nothing ran."""

    seconds: float
    tokens: float
    requests: float
    entries: float
    verdicts: float
    first_token: float | None
    next_token: float | None
    acceptance: float | None
    batch: float | None
    commit: float | None
    passes: dict[str, float]


def rates(before: Stack, after: Stack) -> Rates:
    """From two looks at the same servers; one that was restarted in between counts from its start."""
    seconds = max(_read_at(after) - _read_at(before), 1e-3)

    def grown(server: str, name: str) -> float:
        new, old = after.of(server).total(name), before.of(server).total(name)
        return new - old if new >= old else new

    def average(server: str, name: str) -> float | None:
        count = grown(server, f"{name}_count")
        return grown(server, f"{name}_sum") / count if count else None

    drafted = grown("generation", "vllm:spec_decode_num_draft_tokens_total")
    accepted = grown("generation", "vllm:spec_decode_num_accepted_tokens_total")
    new = after.of("generation").by("kolm_sequence_passes_total", "method")
    old = before.of("generation").by("kolm_sequence_passes_total", "method")
    return Rates(
        seconds=seconds,
        tokens=grown("generation", "vllm:generation_tokens_total") / seconds,
        requests=grown("generation", "vllm:request_success_total") / seconds,
        entries=grown("ledger", "kolm_ledger_entries") / seconds,
        verdicts=grown("auditor", "kolm_auditor_verdicts_total") / seconds,
        first_token=average("generation", "vllm:time_to_first_token_seconds"),
        next_token=average("generation", "vllm:inter_token_latency_seconds"),
        acceptance=accepted / drafted if drafted else None,
        batch=average("ledger", "kolm_ledger_batch_entries"),
        commit=average("ledger", "kolm_ledger_commit_seconds"),
        passes={method: (count - old.get(method, 0.0)) / seconds for method, count in sorted(new.items())},
    )


def _read_at(stack: Stack) -> float:
    return max(server.read_at for server in stack.servers)


def _polls(addresses: Mapping[str, str], every: float, count: int | None) -> Iterator[tuple[Stack, Stack]]:
    """Each state of the stack with the one before it, `every` seconds apart; `count` times, or until a signal."""
    stop = threading.Event()
    with stop_signals(lambda _: stop.set()):
        before = read_stack(addresses)
        while (count is None or count > 0) and not stop.wait(every):
            after = read_stack(addresses)
            yield before, after
            before, count = after, None if count is None else count - 1


def _stack_view(stack: dict[str, Any]) -> View:
    """The servers in a table, and below it what matters about the rest."""
    problem = [Styled(f"✗ {', '.join(stack['broken'])}", "bold red")] if stack["broken"] else []
    servers = table(
        stack["servers"],
        Column("server", "name"),
        Column("", lambda server: MARKS[server["serving"]]),
        Column("address", "address"),
        Column("version", lambda server: server["problem"] or server["version"]),
        Column("up", lambda server: "" if server["seconds_up"] is None else duration(server["seconds_up"])),
        Column("memory", lambda server: "" if server["problem"] else f"{server['memory_bytes'] / 2**20:,.0f} MiB"),
    )
    return [servers, facts(*_facts(stack)), *problem]


def _facts(stack: dict[str, Any]) -> Iterator[tuple[Line, ...]]:
    """Nothing about a server that does not tell."""
    if stack["model"] is not None:
        heads = ", ".join(name or "a folder's head" for name in stack["heads"])
        unproven = (Styled("unproven", "bold red"), ": one row a pass, no speculation")
        proven = (stack["engine"],) if stack["engine"] else ("proven",) if stack["profile_proven"] else unproven
        yield "model", (f"{stack['model']}, profile ", *proven)
        yield "methods", f"{', '.join(stack['methods'])}{f' with {heads}' if heads else ''}"
    if stack["running"] is not None:
        refused = f", {stack['outbox_refused']:.0f} refused" if stack["outbox_refused"] else ""
        yield "requests", f"{stack['running']:.0f} running, {stack['waiting']:.0f} waiting"
        yield "outbox", f"{stack['outbox']:.0f} receipts wait for the ledger{refused}"
        yield "halted", ", ".join(stack["halted"]) or "nothing"
    if stack["entries"] is not None:
        yield "log", f"{stack['entries']:,.0f} entries, checkpoint of {duration(stack['checkpoint_age_seconds'])} ago"
        yield "halts", f"{stack['halts_open']:.0f} open"
        if lags := stack["witness_lag_entries"]:
            yield "witnesses", ", ".join(f"{name} {lag:.0f} behind" for name, lag in lags.items())
    if stack["verdicts"] is not None:
        owed = stack["obligations"]
        yield "audit", ", ".join(f"{owed.get(state, 0):.0f} {state}" for state in ("owed", "overdue", "undrawn"))
        counts = joined(
            Styled(f"{count:.0f} {name}", OUTCOME_STYLES.get(name, "") if count else "")
            for name, count in stack["verdicts"].items()
        )
        yield "verdicts", (*counts, " since the auditor's start")


@contextmanager
def _shown(*, as_json: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """The function to call with each state. A terminal gets a screen of its own, which is left as it was."""
    if as_json:
        yield lambda stack: print(dumps(stack), flush=True)
    elif not sys.stdout.isatty():
        yield lambda stack: print(_watch_line(stack), flush=True)
    else:
        from rich.live import Live

        from services.cli.frame.rendering import drawn

        with Live(console=stdout_console(), screen=True, auto_refresh=False) as live:
            yield lambda stack: live.update(drawn(_watch_view(stack)), refresh=True)


def _watch_view(stack: dict[str, Any]) -> View:
    """A screen that changes: what is under way, and what was done since the last one."""
    done, owed = stack["rates"], stack["obligations"] or {}
    methods = ", ".join(f"{method} {count:.0f}" for method, count in done["passes"].items() if count) or "–"
    running, cache, outbox = _count(stack, "running"), stack["cache_used"] or 0.0, _count(stack, "outbox")
    due = f"{owed.get('owed', 0):.0f} owed, {owed.get('overdue', 0):.0f} overdue"
    batch = "–" if done["batch"] is None else f"{done['batch']:.1f}"
    rows = facts(
        ("tokens", f"{done['tokens']:.0f}/s, {done['requests']:.1f} requests/s"),
        ("requests", f"{running} running, {_count(stack, 'waiting')} waiting, cache {cache:.0%}"),
        ("latency", f"first token {_ms(done['first_token'])}, next {_ms(done['next_token'])}"),
        ("drafts", f"{_share(done['acceptance'])} accepted"),
        ("passes/s", methods),
        ("receipts", f"{outbox} in the outbox, {done['entries']:.1f} entries/s"),
        ("writes", f"{batch} a batch, commit {_ms(done['commit'])}"),
        ("audit", f"{done['verdicts']:.1f} verdicts/s, {due}"),
    )
    away = [f"{server['name']} does not answer" for server in stack["servers"] if not server["serving"]]
    problems = [*away, *stack["broken"]]
    return [Styled(f"✗ {', '.join(problems)}", "bold red") if problems else Styled("✓ all serve", "green"), rows]


def _watch_line(stack: dict[str, Any]) -> str:
    """The same in one line of at most 80 columns, for a pipe."""
    done = stack["rates"]
    state = "ok" if stack["serving"] and not stack["broken"] else "BROKEN" if stack["serving"] else "AWAY"
    return (
        f"{time.strftime('%H:%M:%S')} {state} {done['tokens']:.0f} tok/s {_count(stack, 'running')} run "
        f"{_count(stack, 'waiting')} wait ttft {_ms(done['first_token'])} acc {_share(done['acceptance'])} "
        f"outbox {_count(stack, 'outbox')} {done['entries']:.0f} entries/s"
    )


def _count(stack: dict[str, Any], figure: str) -> str:
    return f"{stack[figure] or 0:.0f}"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


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
