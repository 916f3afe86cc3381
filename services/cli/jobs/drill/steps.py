"""The drill itself: an exact answer, a broken pass, the DEVIATION, the halt, the refusal, the resume."""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ledger.documents.verdict import DEVIATION, EXACT
from ledger.keys.trusted_keys import TrustedKeys
from services.cli.jobs import resumes
from services.cli.jobs.drill.model import FAULT, NAME, PROMPT, make_model
from services.cli.jobs.ledger.log_verification import check_log
from services.cli.jobs.running.local_services import Addresses, LocalServices, bring_up
from services.cli.jobs.running.own_principals import OWNER, token_file
from services.cli.jobs.running.supervisor import Supervisor
from services.client import Completion, LedgerClient, Request, Runtime, SamplingParams, SpecDecodeConfig
from services.client.errors import FailedPrecondition
from services.client.ledger.log import Halt, Verdict

ORIGIN = "drill.invalid/not-a-real-log"
"""The name of the drill's log in its checkpoints."""
TENANT = "drill"
"""The tenant of the drill's receipts."""
METHOD = "lookahead"

_SAMPLING = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
_REASON = "DRILL: the fault that the drill had made was taken away"
_PATIENCE_SECONDS = 240.0
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 10.0
_SHOWN = 48  # characters of an answer

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Seen:
    """A step that happened: `name` is its word in docs/auditing.md, `entry` its place in the drill's log."""

    name: str
    entry: int | None
    said: str


class DidNotHappen(Exception):
    """A step of the drill that was waited for in vain, or came out otherwise."""


def drill(folder: Path, supervisor: Supervisor) -> Iterator[Seen]:
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
        generation_module="services.cli.jobs.drill.broken_server",
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
    with Runtime.connect(addresses.generation) as runtime, LedgerClient.connect(addresses.ledger) as ledger:
        good = _answer(runtime, METHOD)
        index, verdict = _verdict(ledger, good)
        _expect(verdict.outcome == EXACT, f"the verdict on the first answer is {verdict.outcome}, not EXACT")
        said = f"{METHOD} drafted, the model answered {_beginning(good)}, and the auditor computed it again"
        yield Seen("EXACT", verdict.index, f"{said}: the receipt at entry {index} is true")

        fault.touch()
        bad = _answer(runtime, METHOD)
        _expect(_tokens(bad) != _tokens(good), "the broken pass answered the same tokens")
        index, verdict = _verdict(ledger, bad)
        _expect(verdict.outcome == DEVIATION, f"the verdict on the broken answer is {verdict.outcome}, not DEVIATION")
        said = f"the pass is broken now: a row's logits depend on how many rows stand beside it; {_beginning(bad)} came"
        yield Seen("DEVIATION", verdict.index, f"{said}. {_of_deviation(verdict, index)}")

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
    yield Seen(
        "log", None, f"{report.size} entries verify; deviation, halt and resume stay in it, for everybody to read"
    )


def _answer(runtime: Runtime, method: str, sampling: SamplingParams = _SAMPLING) -> Completion:
    request = Request(prompt=PROMPT, sampling=sampling, tenant=TENANT)
    return runtime.serve(request, spec_decode=SpecDecodeConfig(method=method))


def _tokens(completion: Completion) -> tuple[int, ...]:
    return completion.choices[0].token_ids


def _beginning(completion: Completion) -> str:
    return f"“{' '.join(completion.choices[0].text.split())[:_SHOWN]}…”"


def _verdict(ledger: LedgerClient, completion: Completion) -> tuple[int, Verdict]:
    """The receipt's entry, and what the auditor found."""
    receipt = completion.choices[0].receipt
    if receipt is None:
        raise DidNotHappen("the answer came without a receipt")

    def judged() -> tuple[int, Verdict] | None:
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
        _answer(runtime, METHOD, _ONE_TOKEN)
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
    key = resumes.operator_key(data_dir / "keys" / "operator.pem", data_dir / "trusted", None, ledger)
    return resumes.append_resume(ledger, resumes.signed_resume(halt, key, _REASON)).resume_index


def _until(ask: Callable[[], _Value | None], what: str) -> _Value:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (answer := ask()) is None:
        if time.monotonic() > deadline:
            raise DidNotHappen(f"{what} did not come within {_PATIENCE_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)
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
