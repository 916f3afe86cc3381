"""The main job, end to end: `python -m demo.run`, which is `make demo`.

Starts the services on loopback with SQLite, answers real prompts of six kinds with speculation off and on,
replays all of it, verifies the ledger, shows one receipt, and leaves no process and no file.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from demo import forget_variables
from demo.main_job.scenes import Stage
from demo.main_job.script import Demo
from services.cli.up.local_services import LocalServices
from services.cli.up.supervisor import NotReady, ServiceDied, Supervisor
from services.client.errors import KolmError
from services.generation.target.errors import ModelNotFound
from services.generation.target.model_path import model_path

_REPOSITORY = Path(__file__).resolve().parent.parent
_HEAD = _REPOSITORY / "demo" / "smollm2" / "head"
_STORE = _REPOSITORY / "demo" / "smollm2" / "store"
_GRACE_SECONDS = 15.0
_OK, _FAILED, _USAGE, _DIFFERS, _INTERRUPTED = 0, 1, 2, 3, 130


def main() -> int:
    """The process's exit code: 0 if everything was identical, exact and whole, else 3."""
    options = _options()
    console = Console(highlight=False)
    try:
        model_path(options.model)
    except ModelNotFound as error:
        print(f"--model: {error}, which `make venv` installs", file=sys.stderr)
        return _USAGE
    forget_variables()
    started = time.monotonic()
    with _data_dir(options.data_dir) as data_dir:
        services = LocalServices(
            data_dir, options.model, generation_port=0, ledger_port=0, auditor_port=0, audit_rate=1.0,
            generation_settings=_settings(options.head, options.store),
        )  # fmt: skip
        code = _run(services, console, options)
    if code == _OK:
        console.print(f"\n[dim]everything is stopped; that took {time.monotonic() - started:.0f} s. To go on:[/]")
        console.print("  . .venv/bin/activate                            [dim]in each new terminal[/]")
        console.print("  kolm up                                         [dim]all services, until Ctrl-C[/]")
        console.print('  kolm generate --chat "What is gravity?"         [dim]in another terminal[/]')
    return code


def _run(services: LocalServices, console: Console, options: argparse.Namespace) -> int:
    supervisor = Supervisor(lambda name, line: None)
    try:
        good = Demo(services, supervisor, Stage(console), options.prompts, options.max_tokens).run()
        return _OK if good else _DIFFERS
    except KeyboardInterrupt:
        print("\ninterrupted, stopping the services", file=sys.stderr)
        return _INTERRUPTED
    except (ServiceDied, NotReady, KolmError) as error:
        print(f"\nthe demo failed: {_cause(error, supervisor)}", file=sys.stderr)
        return _FAILED
    finally:
        _ignore_further_signals()
        supervisor.stop(_GRACE_SECONDS)


def _cause(error: Exception, supervisor: Supervisor) -> str:
    """A call that failed because its service died is the service's story."""
    try:
        supervisor.check()
    except ServiceDied as died:
        error = died
    words = error.last_lines if isinstance(error, ServiceDied) else ()
    return "\n  ".join((str(error), *words))


@contextmanager
def _data_dir(given: Path | None) -> Iterator[Path]:
    """The directory that was asked for, which stays, or one in .cache that is gone afterwards."""
    if given is not None:
        yield given
        return
    cache = _REPOSITORY / ".cache"
    cache.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="demo-", dir=cache))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("smollm2"), help="directory, GGUF file or name (smollm2)")
    parser.add_argument("--head", type=Path, default=_HEAD, help=f"its EAGLE-3 head, if there ({_HEAD.name})")
    parser.add_argument("--store", type=Path, default=_STORE, help=f"its datastore, if there ({_STORE.name})")
    parser.add_argument("--data-dir", type=Path, help="keep keys and ledger here (default: removed at the end)")
    parser.add_argument("--prompts", type=_from_one_on, default=2, help="prompts of each kind (2)")
    parser.add_argument("--max-tokens", type=_from_one_on, default=128, help="most tokens of an answer (128)")
    return parser.parse_args()


def _from_one_on(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer from 1 on, got {text}")
    return int(text)


def _settings(head: Path, store: Path) -> dict[str, object]:
    heads = {"head": f"{head.parent}/{head.name}"} if (head / "config.json").is_file() else {}
    return heads | ({"shared_datastore": store} if (store / "manifest.json").is_file() else {})


def _ignore_further_signals() -> None:
    """Stopping is under way and bounded; another Ctrl-C must not leave half of it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    sys.exit(main())
