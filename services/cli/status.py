"""`kolm status`: the whole stack on one screen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import typer
from typer import Option

from ledger.documents.audit import DEVIATION, INCONSISTENT, OWN_OUTCOMES
from services.cli.frame import exits, options
from services.cli.frame.output import answer, members
from services.cli.frame.views import MARKS, OUTCOME_STYLES, Column, Line, Styled, View, facts, joined, table
from services.client.channel import Connection
from services.client.errors import DeadlineExceeded, KolmError, Unavailable
from services.client.generation.completion import ModelInfo
from services.client.generation.runtime import Runtime
from services.client.health import Samples, read_metrics

_SECONDS = 2.0


def status(
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    auditor: options.Auditor = options.AUDITOR,
    registry: options.Registry = options.REGISTRY,
    check: Annotated[
        bool,
        Option(
            "--check",
            help="Judge only whether every server serves (else 5) and the numerics profile is proven (else 3).",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Show servers, model, halts, pending receipts, log and audit. Exit code 5 if a server does not serve or shows no
    figures, 3 if a promise does not hold: profile unproven, halts open, deviations, overdue verdicts, refused receipts,
    a fork.
    """
    stack = read_stack({"generation": generation, "ledger": ledger, "auditor": auditor, "registry": registry})
    answer(json, stack.document(), _stack_view)
    if not (stack.answering if check else stack.complete):
        raise typer.Exit(exits.UNAVAILABLE)
    raise typer.Exit(exits.VERIFICATION_FAILED if (stack.unproven if check else stack.broken) else exits.OK)


@dataclass(frozen=True, slots=True)
class Server:
    """One server. `problem` is the reason if there are no samples, else None."""

    name: str
    address: str
    serving: bool
    samples: Samples
    problem: str | None = None

    @property
    def version(self) -> str:
        return next(iter(self.samples.by("kolm_build_info", "version")), "")

    def document(self) -> dict[str, Any]:
        started = self.samples.total("process_start_time_seconds")
        return members(self, "name", "address", "serving", "version", "problem") | {
            "seconds_up": time.time() - started if started else None,
            "memory_bytes": self.samples.total("process_resident_memory_bytes"),
        }


@dataclass(frozen=True)
class Stack:
    """Every server that was asked, and the model, None if the generation server does not answer."""

    servers: tuple[Server, ...]
    model: ModelInfo | None

    def of(self, name: str) -> Samples:
        return next(server.samples for server in self.servers if server.name == name)

    def has_figures(self, name: str) -> bool:
        """Whether the server's metrics could be read; its figures mean nothing otherwise."""
        return any(server.name == name and server.problem is None for server in self.servers)

    @cached_property
    def serving(self) -> bool:
        return all(server.serving for server in self.servers)

    @cached_property
    def complete(self) -> bool:
        """Whether all servers serve, with metrics that can be read."""
        return self.serving and all(server.problem is None for server in self.servers)

    @cached_property
    def answering(self) -> bool:
        """Whether all servers serve, and the model's numerics are known, as health probes ask."""
        return self.serving and self.model is not None

    @cached_property
    def unproven(self) -> bool:
        return self.model is not None and self.model.engine is None and not self.model.probe_passed

    @cached_property
    def broken(self) -> tuple[str, ...]:
        """Promises that do not hold now, each in a few words."""
        ledger, auditor = self.of("ledger"), self.of("auditor")
        accusers = list(ledger.by("kolm_ledger_witness_silent", "witness").values()).count(2)  # 2: it reports a fork
        counts = (
            (auditor.total("kolm_auditor_verdicts_total", outcome=DEVIATION), "deviations found"),
            (
                auditor.total("kolm_auditor_verdicts_total", outcome=INCONSISTENT),
                "outputs not of the weights",
            ),
            (ledger.total("kolm_ledger_open_halts"), "halts open"),
            (auditor.total("kolm_auditor_obligations", state="overdue"), "verdicts overdue"),
            (self.of("generation").total("kolm_outbox_refused"), "receipts refused by the ledger"),
            (accusers, "witnesses saw another history of the log"),
        )
        unproven = ("numerics profile unproven",) if self.unproven else ()
        stuck = ("the ledger cannot write",) if 0 in ledger.by("kolm_ledger_takes_entries", "").values() else ()
        return (*unproven, *stuck, *(f"{count:.0f} {what}" for count, what in counts if count))

    def document(self) -> dict[str, Any]:
        """Figures of a server without metrics are null: a zero would be taken for an answer."""
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
                what: each if self.has_figures(name) else None
                for name, own in figures.items()
                for what, each in own.items()
            },
        }


def read_stack(addresses: Mapping[str, str]) -> Stack:
    """Ask the servers, by name, in parallel. A server that does not answer raises nothing."""
    with ThreadPoolExecutor(len(addresses)) as pool:
        servers = tuple(pool.map(_read, addresses, addresses.values()))
    return Stack(servers, _model(addresses["generation"]) if servers[0].serving else None)


def _read(name: str, address: str) -> Server:
    serving = False
    with closing(Connection(address)) as connection:
        try:
            serving = connection.serving(timeout=_SECONDS)
            samples = read_metrics(connection, _SECONDS)
        except (Unavailable, DeadlineExceeded):
            return Server(name, address, False, Samples(), "does not answer, or is stopping")
        except KolmError as error:
            return Server(name, address, serving, Samples(), error.message)
        return Server(name, address, serving, samples)


def _model(address: str) -> ModelInfo | None:
    try:
        with Runtime.connect(address) as runtime:
            return runtime.model_info(timeout=_SECONDS)
    except KolmError:
        return None


def _stack_view(stack: dict[str, Any]) -> View:
    """The servers in a table, then model, requests, log and audit."""
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
    """Rows about servers with metrics."""
    if stack["model"] is not None:
        heads = ", ".join(f"the head {name}" if name else "a head from a folder" for name in stack["heads"])
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
        # Outcomes of other engines are shown if there are some.
        verdicts = {name: count for name, count in stack["verdicts"].items() if count or name in OWN_OUTCOMES}
        counts = (
            Styled(f"{count:.0f} {name}", OUTCOME_STYLES.get(name, "") if count else "")
            for name, count in verdicts.items()
        )
        yield "verdicts", (*joined(counts), " since the auditor's start")


def duration(seconds: float) -> str:
    """`42 s`, `3 min`, `5 h 12 min`, `4 d 7 h`."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if minutes < 1:
        return f"{seconds:.0f} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if days < 1 else f"{days} d {hours % 24} h"
