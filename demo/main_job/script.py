"""The demo, step by step."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from demo.main_job.measurement import KINDS, METHODS, Answer, Prompt, answer, explained, read_prompts, rows, total
from demo.main_job.scenes import Stage, Stream
from ledger.keys.trusted_keys import TrustedKeys
from services.auditor.auditor import Examined
from services.auditor.examination import EnginePlan
from services.auditor.serving import LoadedWhenAsked, connected
from services.auditor.settings import AuditorSettings
from services.cli.frame.rendering import print_view
from services.cli.frame.views import counted
from services.cli.ledger.log import check_log, report_document, report_view
from services.cli.ledger.receipt_files import prove
from services.cli.up.local_services import OWNER, LocalServices, token_file
from services.cli.up.supervisor import Supervisor
from services.client.generation.completion import ModelInfo
from services.client.generation.request import SamplingParams
from services.client.generation.runtime import Runtime
from services.client.identity import set_process_token
from services.client.ledger.ledger import LedgerClient
from services.generation.target.kernels.compilation import kernels_are_compiled
from services.generation.target.model_path import model_path
from services.generation.target.without_torch import hide_torch

_TEMPERATURES = (0.0, 0.7)
"""Taken in turn, so that greedy and sampled output are both compared."""
_READY_SECONDS = 300.0
_LINE_EVERY = 10  # replays, if no terminal shows a bar


class Demo:
    """One run on one set of services. Its methods catch no errors."""

    def __init__(
        self, services: LocalServices, supervisor: Supervisor, stage: Stage, prompts: int, max_tokens: int
    ) -> None:
        self._services = services
        self._supervisor = supervisor
        self._stage = stage
        self._prompts = prompts
        self._methods: tuple[str, ...] = METHODS
        self._samplings = tuple(SamplingParams(temperature=t, seed=7, max_tokens=max_tokens) for t in _TEMPERATURES)

    def run(self) -> bool:
        """True if every output was identical, every replay exact and the ledger whole."""
        self._stage.open()
        ledger, generation = self._start()
        with Runtime.connect(generation) as runtime:
            answers = self._generate(runtime)
        identical = self._compare(answers)
        with LedgerClient.connect(ledger) as client:
            exact = self._audit(ledger, len(list(client.receipts())))
            whole = self._verify(ledger)
            self._show_receipt(client, next(each for each in answers if each.method != "off"))
        return identical and exact and whole

    def _start(self) -> tuple[str, str]:
        self._stage.step("Start the ledger and the generation service")
        if self._services.trust_own_keys():
            self._stage.remark("with new keys of log, server and auditor; by the public ones anyone can check it all")
        set_process_token(None, token_file(self._services.data_dir, OWNER))
        with self._stage.waiting("starting the ledger"):
            ledger = self._supervisor.start(self._services.ledger(), _READY_SECONDS)
        self._stage.console.print(f"ledger      {ledger}  SQLite in {_near(self._services.data_dir)}", soft_wrap=True)
        with self._stage.waiting(_loading(), long=True):
            generation = self._supervisor.start(self._services.generation(ledger), _READY_SECONDS)
        with Runtime.connect(generation) as runtime:
            info = runtime.model_info()
        self._methods = tuple(method for method in METHODS if method in ("off", *info.methods))
        self._stage.console.print(f"generation  {generation}  {_model(info)}", soft_wrap=True)
        self._stage.remark(_probe(info))
        return ledger, generation

    def _generate(self, runtime: Runtime) -> list[Answer]:
        self._stage.step(f"Generate: {len(KINDS)} kinds of prompts, {self._prompts} each, speculation off and on")
        self._stage.remark("at temperatures 0 and 0.7 in turn; the first of each kind as it streams:")
        self._warm_up(runtime)
        return [each for kind in KINDS for each in self._generate_kind(runtime, kind)]

    def _warm_up(self, runtime: Runtime) -> None:
        """The first request of a process pays for compilation; nothing of it is counted."""
        with self._stage.waiting("warming up"):
            for method in self._methods:
                answer(runtime, read_prompts(KINDS[0], 1)[0], method, SamplingParams(max_tokens=8), lambda text: None)

    def _generate_kind(self, runtime: Runtime, kind: str) -> list[Answer]:
        answers: list[Answer] = []
        first, *others = read_prompts(kind, self._prompts)
        answers += self._show_first(runtime, first)
        with self._stage.waiting(f"{kind}: {counted(len(others), 'more prompt')}", long=True):
            for place, prompt in enumerate(others):
                # No method always meets the machine first.
                order = self._methods if place % 4 < 2 else self._methods[::-1]
                answers += [self._quietly(runtime, prompt, method, place + 1) for method in order]
        return answers

    def _show_first(self, runtime: Runtime, prompt: Prompt) -> list[Answer]:
        self._stage.prompt(prompt)
        *others, shown = self._methods
        with self._stage.waiting(", ".join(others)):
            answers = [self._quietly(runtime, prompt, method, 0) for method in others]
        stream = Stream(self._stage.console)
        answers.append(answer(runtime, prompt, shown, self._samplings[0], stream.write))
        stream.close()
        return answers

    def _quietly(self, runtime: Runtime, prompt: Prompt, method: str, place: int) -> Answer:
        sampling = self._samplings[place % len(self._samplings)]
        return answer(runtime, prompt, method, sampling, lambda text: None)

    def _compare(self, answers: Sequence[Answer]) -> bool:
        self._stage.step("Compare")
        totals = [total(answers, method) for method in self._methods]
        self._stage.table(rows(answers), totals)
        self._stage.remark("off gives one token a pass of the model; the other methods have to equal it")
        self._stage.remark("so few prompts on a busy machine measure speed badly; docs/benchmarks.md measures it well")
        return all(row.identical in (None, True) for row in totals)

    def _audit(self, ledger: str, receipts: int) -> bool:
        self._stage.step("Audit: compute every request again, without the server")
        self._stage.remark("the auditor has a key and an engine of its own, and the log; it asks no server")
        self._stage.remark(
            f"it loads the model once more and computes {receipts} answers, on one thread: a minute or two …"
        )
        found = Counter(each.finding.outcome for each in self._examined(ledger, receipts))
        colour = "green" if found == {"EXACT": receipts} else "bold red"
        text = f"{found['EXACT']} of {receipts} replays EXACT: every token and every stream digest agrees, bit for bit"
        self._stage.console.print(f"[{colour}]{text}[/]")
        return found == {"EXACT": receipts}

    def _examined(self, ledger: str, receipts: int) -> Iterator[Examined]:
        """One pass, as `kolm audit run` makes it."""
        directory = self._services.data_dir
        settings = AuditorSettings.of_one_pass(ledger=ledger, data_dir=directory)
        plan = EnginePlan(model_path(self._services.model or ""))
        engine = LoadedWhenAsked(plan, threading.Event(), hide_torch)
        columns = (TextColumn("replayed"), BarColumn(bar_width=30), MofNCompleteColumn())
        console = self._stage.console
        with (
            Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
            connected(settings, engine, spot_checks=1.0, announces=False) as auditor,
        ):
            task = progress.add_task("", total=receipts)
            for count, examined in enumerate(auditor.run_pass(), 1):
                progress.advance(task)
                if not console.is_terminal and count % _LINE_EVERY == 0:
                    self._stage.remark(f"replayed {count} of {receipts}")
                yield examined

    def _verify(self, ledger: str) -> bool:
        self._stage.step("Verify the ledger, every entry, trusting only the public keys")
        trusted = TrustedKeys.load(self._services.data_dir / "trusted")
        report = check_log(ledger, None, trusted)
        print_view(report_view(report_document(report)), self._stage.console)
        return report.ok

    def _show_receipt(self, ledger: LedgerClient, shown: Answer) -> None:
        self._stage.step(f"One receipt: {shown.prompt.id} with {shown.method}")
        details = ledger.receipt(shown.receipt.receipt_id)
        proof = prove(details, self._services.data_dir / "trusted")
        print_view(explained(details, proof), self._stage.console)
        self._stage.remark(f"all of it, while services run: kolm receipts show {details.receipt.receipt_id}")


def _loading() -> str:
    if kernels_are_compiled():
        return "loading the model, probing its numerics bit by bit"
    return "compiling kernels (at the first start only), loading, probing"


def _near(path: Path) -> Path:
    """The path, relative to the current folder if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _model(info: ModelInfo) -> str:
    return f"{info.model}, {info.architecture}, methods {', '.join(info.methods)}"


def _probe(info: ModelInfo) -> str:
    if info.probe_passed:
        return "probed: no bit of an answer depends on drafts, or on other requests in the batch"
    return "the probe of the numerics FAILED: speculation stays off"
