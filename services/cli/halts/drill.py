"""`kolm halts drill`: an exact answer, a broken pass, the DEVIATION, the halt, the refusal, the resume."""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import typer

from ledger.documents.audit import DEVIATION, EXACT, Verdict
from ledger.keys.trusted_keys import TrustedKeys
from services.cli.frame import exits, options
from services.cli.frame.exits import Failed
from services.cli.frame.options import ledger_at
from services.cli.frame.output import print_json, stderr_console, stdout_console
from services.cli.frame.process import awaited
from services.cli.frame.views import Styled, View
from services.cli.halts.drill_engine import FAULT, NAME, PROMPT, make_model
from services.cli.halts.halts import append_resume, signed_resume
from services.cli.ledger.log import check_log
from services.cli.trust import operator_key
from services.cli.up.local_services import OWNER, Addresses, LocalServices, bring_up, token_file
from services.cli.up.supervisor import NotReady, ServiceDied, StopRequested, Supervisor
from services.client import Completion, LedgerClient, Request, Runtime, SamplingParams, SpecDecodeConfig
from services.client.errors import FailedPrecondition
from services.client.ledger.log import Halt, VerdictEntry

ORIGIN = "drill.invalid/not-a-real-log"
"""The name of the drill's log in its checkpoints."""
TENANT = "drill"
"""The tenant of the drill's receipts."""
METHOD = "lookahead"

_MOST_TOKENS = 48
_REASON = "DRILL: the fault that the drill had made was taken away"
_PATIENCE_SECONDS = 240.0
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 10.0
_SHOWN = 48  # characters of an answer

_Value = TypeVar("_Value")


def drill(json: options.Json = False) -> None:
    """See a DEVIATION, the halt, the refusal and the resume, in two minutes: in a stack of the drill's own, in a
    temporary folder, with a model of random weights whose arithmetic is broken on purpose. Nothing of yours is touched.
    Exit code 0 if every step happened.
    """
    from services.cli.frame.rendering import drawn

    shown = stderr_console() if json else stdout_console()
    supervisor, seen = Supervisor(lambda service, line: None), []
    with own_folder() as folder, stopped_at_the_end(supervisor):
        try:
            shown.print(drawn(_drill_opening(folder)), soft_wrap=True)
            for step in drill_steps(folder, supervisor):
                seen.append(step)
                shown.print(drawn(_step_view(len(seen), step)), soft_wrap=True)
        except StopRequested as request:
            shown.print(f"{request}: the drill is stopped and its folder removed")
            raise typer.Exit(exits.INTERRUPTED) from None
        except (ServiceDied, NotReady, DidNotHappen) as error:
            raise Failed(f"the drill ended after {len(seen)} steps: {error}", "nothing of yours was touched") from error
    if json:
        print_json({"drill": True, "steps": [asdict(each) for each in seen]})
    else:
        shown.print(_drill_summary(seen), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Seen:
    """A step that happened: `name` is its word in docs/auditing.md, `entry` its place in the drill's log."""

    name: str
    entry: int | None
    said: str


class DidNotHappen(Exception):
    """A step of the drill that was waited for in vain, or came out otherwise."""


def drill_steps(folder: Path, supervisor: Supervisor) -> Iterator[Seen]:
    """Start the stack in `folder` and take the steps, one by one.

    Raises DidNotHappen, KolmError, LedgerError, and what the supervisor raises for a service that died or a signal.
    """
    model, data_dir = make_model(folder / NAME), folder / "data"
    services = LocalServices(
        data_dir,
        model,
        generation_port=0,
        ledger_port=0,
        auditor_port=0,
        registry_port=0,
        generation_module="services.cli.halts.drill_engine",
        generation_flags=(f"--model-name={NAME}", "--halt-poll-seconds=0.05", "--threads=1"),
        auditor_flags=("--draw-seconds=0",),
        environment={"KOLM_LEDGER_ORIGIN": ORIGIN},
    )
    with _only_the_drills_settings(data_dir):
        addresses = bring_up(services, supervisor)
        yield from _beside(_steps(addresses, data_dir, model / FAULT), supervisor)


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder that says whose it is, and is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="kolm-drill-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def stopped_at_the_end(supervisor: Supervisor) -> Iterator[None]:
    """Signals end the block as `Supervisor` says; its services are stopped however it ends."""
    with supervisor.listening():
        try:
            yield
        finally:
            supervisor.stop(_GRACE_SECONDS)


def _steps(addresses: Addresses, data_dir: Path, fault: Path) -> Iterator[Seen]:
    with Runtime.connect(addresses.generation) as runtime, ledger_at(addresses.ledger) as ledger:
        good = _answer(runtime, METHOD)
        index, verdict = _verdict(ledger, good)
        outcome = verdict.document.outcome
        _expect(outcome == EXACT, f"the verdict on the first answer is {outcome}, not EXACT")
        said = f"{METHOD} drafted, the model answered {_beginning(good)}, and the auditor computed it again"
        yield Seen("EXACT", verdict.index, f"{said}: the receipt at entry {index} is true")

        fault.touch()
        bad = _answer(runtime, METHOD)
        _expect(_tokens(bad) != _tokens(good), "the broken pass answered the same tokens")
        index, verdict = _verdict(ledger, bad)
        outcome = verdict.document.outcome
        _expect(outcome == DEVIATION, f"the verdict on the broken answer is {outcome}, not DEVIATION")
        said = f"the pass is broken now: a row's logits depend on how many rows stand beside it; {_beginning(bad)} came"
        yield Seen("DEVIATION", verdict.index, f"{said}. {_of_deviation(verdict.document, index)}")

        halt = _until(lambda: next(iter(ledger.halt_state().halts), None), "the halt")
        _expect(halt.scope.method == METHOD, f"{halt.scope.method} is halted, not {METHOD}")
        yield Seen("halt", halt.halt_index, f"the auditor signed it: {METHOD} no longer drafts for this base")

        refusal = _until(lambda: _refusal(runtime), "the refusal")
        plain = _answer(runtime, "off")
        _expect(_tokens(plain) == _tokens(good), "the method off answered other tokens than the exact pass")
        yield Seen("refusal", None, f"{refusal}; asked with off, the server still answers, with the right tokens")

        fault.unlink()
        resumed = _resume(ledger, halt, data_dir)
        again = _until(lambda: _answered(runtime), "an answer after the resume")
        _expect(_tokens(again) == _tokens(good), "after the resume other tokens came than before the fault")
        yield Seen(
            "resume",
            resumed,
            f"the operator's key signed it, and {METHOD} drafts again; the answer is the first one, token by token",
        )

    report = check_log(addresses.ledger, None, TrustedKeys.load(data_dir / "trusted"), ORIGIN)
    _expect(report.ok, report.problem or "")
    halts, ends = report.kinds.get("halt", 0), report.kinds.get("resume", 0)
    _expect((halts, ends) == (1, 1), f"the log holds {halts} halts and {ends} resumes, not one of each")
    yield Seen("log", None, f"{report.size} entries verify; deviation, halt and resume stay in it")


def _answer(runtime: Runtime, method: str, most: int = _MOST_TOKENS) -> Completion:
    sampling = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True)
    request = Request(prompt=PROMPT, sampling=sampling, tenant=TENANT)
    return runtime.serve(request, spec_decode=SpecDecodeConfig(method=method))


def _tokens(completion: Completion) -> tuple[int, ...]:
    return completion.choices[0].token_ids


def _beginning(completion: Completion) -> str:
    return f"“{' '.join(completion.choices[0].text.split())[:_SHOWN]}…”"


def _verdict(ledger: LedgerClient, completion: Completion) -> tuple[int, VerdictEntry]:
    """The receipt's entry, and what the auditor found."""
    receipt = completion.choices[0].receipt
    if receipt is None:
        raise DidNotHappen("the answer came without a receipt")

    def judged() -> tuple[int, VerdictEntry] | None:
        details = ledger.receipt(receipt.receipt_id)
        return (details.receipt.index, details.verdicts[-1]) if details.verdicts else None

    return _until(judged, "the auditor's verdict")


def _of_deviation(verdict: Verdict, index: int) -> str:
    found = verdict.deviation
    where = "" if found is None else f" from token {found.position} on"
    how = "token by token with speculation off" if verdict.verification == "decode" else "in passes along the record"
    return f"The receipt at entry {index} claims what the model does not say{where}: the auditor computed it {how}"


def _refusal(runtime: Runtime) -> str | None:
    """What the server says to a request that names the halted method; None while it answers. One token, for which
    nothing is drafted, cannot deviate itself.
    """
    try:
        _answer(runtime, METHOD, most=1)
    except FailedPrecondition as error:
        if error.reason == "SPEC_DECODE_HALTED":
            return error.message
        raise
    return None


def _answered(runtime: Runtime) -> Completion | None:
    try:
        return _answer(runtime, METHOD)
    except FailedPrecondition:
        return None


def _resume(ledger: LedgerClient, halt: Halt, data_dir: Path) -> int:
    key = operator_key(data_dir / "keys" / "operator.pem", data_dir / "trusted", None, ledger)
    return append_resume(ledger, signed_resume(halt, key, _REASON)).resume_index


def _until(ask: Callable[[], _Value | None], what: str) -> _Value:
    if (answer := awaited(ask, _PATIENCE_SECONDS)) is None:
        raise DidNotHappen(f"{what} did not come within {_PATIENCE_SECONDS:.0f} s")
    return answer


def _expect(so: bool, otherwise: str) -> None:
    if not so:
        raise DidNotHappen(otherwise)


def _beside(steps: Iterator[Seen], supervisor: Supervisor) -> Iterator[Seen]:
    """The steps, taken by another thread: this one hears signals, and of services that die."""
    arrived: queue.SimpleQueue[Seen | BaseException | None] = queue.SimpleQueue()

    def take() -> None:
        try:
            for step in steps:
                arrived.put(step)
            arrived.put(None)
        except BaseException as error:  # raised again by the thread that waits
            arrived.put(error)

    threading.Thread(target=take, name="drill", daemon=True).start()
    while True:
        supervisor.check()
        try:
            step = arrived.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        if step is None:
            return
        if isinstance(step, BaseException):
            raise step
        yield step


@contextmanager
def _only_the_drills_settings(data_dir: Path) -> Iterator[None]:
    """No KOLM_ variable of the caller's, so that nothing here reaches a real service, key or database."""
    own = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("KOLM_")}
    kept = {name: value for name, value in own.items() if name in ("KOLM_KERNEL_CACHE", "KOLM_INSTRUCTION_SET")}
    os.environ |= kept | {"KOLM_TOKEN_FILE": str(token_file(data_dir, OWNER)), "KOLM_DATA_DIR": str(data_dir)}
    try:
        yield
    finally:
        for name in (*kept, "KOLM_TOKEN_FILE", "KOLM_DATA_DIR"):
            os.environ.pop(name, None)
        os.environ |= own


def _drill_opening(folder: Path) -> View:
    """What the drill is about to do."""
    return (
        Styled("DRILL.", "bold"),
        f" Ledger, generation service, auditor and registry start with keys of their own in {folder}; their log is "
        "named drill.invalid, their model has random weights, and its arithmetic will be broken on purpose. Nothing of "
        "yours is touched. The first start on a machine compiles code for half a minute.",
    )


def _step_view(number: int, seen: Seen) -> View:
    """One step, as it has happened."""
    entry = Styled("" if seen.entry is None else f" (entry {seen.entry} of the drill's log)", "dim")
    title = (Styled("✓", "green"), " ", Styled(f"{number}. {seen.name}", "bold"), entry)
    return ("\n", *title, f"\n  {seen.said}")


def _drill_summary(steps: Sequence[Seen]) -> str:
    """The end of a drill whose steps have all happened."""
    return (
        f"\nSeen: {', '.join(step.name for step in steps)}. Everything is stopped, and the drill's folder is removed. "
        "On a real log `kolm halts list` shows what is halted, `kolm receipts show` a receipt with its verdict, "
        "`kolm replay` computes it again, `kolm halts resume` ends the halt: see docs/auditing.md."
    )
