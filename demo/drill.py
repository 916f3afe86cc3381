"""A drill with a false answer: `python -m demo.drill`.

Starts services in a temporary folder, breaks the arithmetic of the generation service, and shows with an operator's
commands how the audit finds it and halts the method, and how the operator resumes it. No other log is written to, and
the folder is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from demo import FAULT, forget_variables
from services.cli.up.local_services import OWNER, LocalServices, bring_up, token_file
from services.cli.up.supervisor import NotReady, ServiceDied, Supervisor
from services.generation.target.errors import ModelNotFound
from services.generation.target.model_path import model_path

_PROMPT = "one, two, three, one, two, three, one, two, three,"
_ASK = ("generate", _PROMPT, "--max-tokens", "24", "--method", "lookahead")
_GRACE_SECONDS = 15.0
_PATIENCE = 90.0  # seconds from a wrong answer to its halt, on a busy machine
_PAUSE = 0.2
_OK, _FAILED, _USAGE, _DIFFERS, _INTERRUPTED = 0, 1, 2, 3, 130


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended, and all that it printed."""

    code: int
    out: str
    err: str


Kolm = Callable[[Sequence[str]], Ran]
"""Runs a `kolm` command against the drill's services."""


class Unexpected(Exception):
    """A step came out otherwise than the drill shows."""


class Drill:
    """One run on services of its own, which are stopped by the caller."""

    def __init__(self, services: LocalServices, supervisor: Supervisor, console: Console, kolm: Kolm) -> None:
        self._services, self._supervisor, self._console, self._kolm = services, supervisor, console, kolm
        self._fault = services.data_dir / "generation" / FAULT

    def run(self) -> None:
        """Raises Unexpected, ServiceDied, NotReady."""
        self._step("Services of its own start, with an auditor that replays every receipt")
        bring_up(self._services, self._supervisor)
        good = self._text("An answer with drafts", *_ASK)
        self._step("From now on the server's arithmetic is wrong: a row depends on the other rows of its pass")
        self._fault.touch()
        bad = self._text("The same request", *_ASK)
        _expect(bad != good, "the answer is another one")
        self._step("The auditor computes it again, on an engine of its own, and halts the method")
        halt = self._await_halt()
        self._show("receipts", "show", str(halt["receipt"]), code=_OK)
        self._show("halts", "list", code=_DIFFERS)
        self._step("The method is refused; without speculation the answer is right")
        self._await(lambda: self._kolm(("generate", _PROMPT, "--max-tokens", "1", *_ASK[4:])).code == _FAILED)
        self._show(*_ASK, code=_FAILED)
        _expect(self._text("", *_ASK[:4], "--method", "off") == good, "off gives the first answer")
        self._step("An operator mends the cause, and signs that the method may go on")
        self._fault.unlink()
        self._show("halts", "resume", str(halt["halt_index"]), "--reason", "the kernel was replaced", code=_OK)
        self._await(lambda: self._kolm(_ASK).code == _OK)
        _expect(self._text("", *_ASK) == good, "the first answer comes again")
        self._step("All of it stays in the log, which verifies")
        self._show("ledger", "verify", code=_OK)

    def _await_halt(self) -> dict[str, Any]:
        """The open halt, with the entry of the receipt that deviates."""
        self._await(lambda: self._kolm(("halts", "list")).code == _DIFFERS)
        (halt,) = json.loads(self._kolm(("halts", "list", "--json")).out)["halts"]
        listed = json.loads(self._kolm(("receipts", "list", "--outcome", "DEVIATION", "--json")).out)
        return {**halt, "receipt": listed[0]["ledger_index"]}

    def _text(self, remark: str, *words: str) -> str:
        if remark:
            self._console.print(f"[dim]{remark}:[/]")
        return self._show(*words, code=_OK).out

    def _show(self, *words: str, code: int) -> Ran:
        """Run a command as an operator would, and show it with its output."""
        self._console.print(f"$ kolm {shlex.join(words)}", style="bold", markup=False, highlight=False, soft_wrap=True)
        ran = self._kolm(words)
        for text in (ran.out, ran.err):
            if text.strip():
                self._console.print(text.rstrip("\n"), markup=False, highlight=False, soft_wrap=True)
        _expect(ran.code == code, f"kolm {words[0]} ends with exit code {code}, and not {ran.code}")
        return ran

    def _step(self, title: str) -> None:
        self._console.print(f"\n[bold cyan]{title}[/]")

    def _await(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not happened():
            self._supervisor.check()
            _expect(time.monotonic() < deadline, f"it happens within {_PATIENCE:g} s")
            time.sleep(_PAUSE)


def _expect(is_so: bool, what: str) -> None:
    if not is_so:
        raise Unexpected(f"expected that {what}")


def drill_services(data_dir: Path, model: Path, **changes: Any) -> LocalServices:
    """Services on free ports, of which the generation service has a fault that a file switches on."""
    free = dict.fromkeys(("generation_port", "ledger_port", "auditor_port", "registry_port"), 0)
    settings = {"halt_poll_seconds": 0.1, "no_auto_discover": True}
    given: dict[str, Any] = {**free, "generation_module": "demo.faulty_server", "generation_settings": settings}
    return LocalServices(data_dir, model, **(given | changes))


def _kolm_of(services: LocalServices) -> Kolm:
    token = str(token_file(services.data_dir, OWNER))
    own = {**os.environ, "KOLM_DATA_DIR": str(services.data_dir), "KOLM_TOKEN_FILE": token}

    def kolm(words: Sequence[str]) -> Ran:
        command = [sys.executable, "-m", "services.cli", *words]
        done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
        return Ran(done.returncode, done.stdout, done.stderr)

    return kolm


def main(arguments: Sequence[str] | None = None) -> int:
    """The process's exit code: 0 if every step had the expected result, else 3."""
    parser = argparse.ArgumentParser(prog="python -m demo.drill", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("smollm2"), help="directory, GGUF file or name (smollm2)")
    try:
        model = model_path(parser.parse_args(arguments).model)
    except ModelNotFound as error:
        print(f"--model: {error}", file=sys.stderr)
        return _USAGE
    forget_variables()
    console, supervisor = Console(highlight=False), Supervisor(lambda name, line: None)
    folder = Path(tempfile.mkdtemp(prefix="kolm-drill-"))
    started = time.monotonic()
    try:
        services = drill_services(folder / "data", model)
        Drill(services, supervisor, console, _kolm_of(services)).run()
    except KeyboardInterrupt:
        print("\ninterrupted, stopping the services", file=sys.stderr)
        return _INTERRUPTED
    except Unexpected as error:
        print(f"\nthe drill came out otherwise: {error}", file=sys.stderr)
        return _DIFFERS
    except (ServiceDied, NotReady) as error:
        last = "\n  ".join(error.last_lines) if isinstance(error, ServiceDied) else ""
        print(f"\nthe drill failed: {error}\n  {last}", file=sys.stderr)
        return _FAILED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # stopping is under way and bounded
        supervisor.stop(_GRACE_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
    console.print(f"\n[dim]everything is stopped and removed; that took {time.monotonic() - started:.0f} s[/]")
    return _OK


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _interrupt)
    sys.exit(main())
