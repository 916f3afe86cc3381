"""Exit codes: what errors become, and processes that a command starts."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ledger.errors import KeyFileError, NotFound, ProofError, StoreError
from services.cli.frame.exits import CommandError, Unreachable, brought_by
from services.cli.frame.failures import EXTRAS, FALLBACKS, as_command_error
from services.cli.frame.process import until_interrupted
from services.cli.up.up import UpReporter
from services.client import errors as client
from services.generation.drafting.methods import METHODS
from services.runtime.settings import LogFormat
from tests.distributions import ROOT, closure, declared
from tests.examples import VECTORS


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (client.InvalidArgument("wrong"), 2),
        (client.NotFound("none"), 4),
        (client.Unavailable("away"), 5),
        (client.DeadlineExceeded("late"), 5),
        (client.ResourceExhausted("full", retry_after=2.0), 5),
        (client.DataLoss("broken"), 3),
        (client.FailedPrecondition("halted", reason="SPEC_DECODE_HALTED"), 1),
        (client.Internal("bug", request_id="42"), 1),
        (Unreachable("no server"), 5),
        (NotFound("no ledger"), 4),
        (KeyFileError("unreadable"), 2),
        (ProofError("no proof"), 3),
        (StoreError("disk"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_every_error_has_its_exit_code(error: Exception, code: int) -> None:
    explained = as_command_error(error)
    assert explained is not None
    assert explained.exit_code == code


def failure_of(error: Exception) -> CommandError:
    failure = as_command_error(error)
    assert failure is not None
    return failure


def test_every_wrong_field_is_named_with_the_flag_that_sets_it() -> None:
    fields = ("spec_decode.k", "sampling.top_p", "messages[0].role")
    violations = tuple(client.FieldViolation(field, "is 2") for field in fields)
    message = failure_of(client.InvalidArgument("…", violations=violations)).message
    assert message == "--k: is 2; --top-p: is 2; messages[0].role: is 2"


HALTED = client.FailedPrecondition("an audit has halted lookahead", reason="SPEC_DECODE_HALTED")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (client.FailedPrecondition("…", reason="METHOD_NOT_LOADED", metadata={"missing": "no_head"}), "kolm up --head"),
        (client.FailedPrecondition("…", reason="METHOD_CANNOT_RUN", metadata={"missing": "no_head"}), "kolm up --head"),
        (client.FailedPrecondition("…", reason="METHOD_CANNOT_RUN", metadata={"missing": "else"}), ""),
        (HALTED, "kolm halts resume"),
        (client.ResourceExhausted("full", retry_after=2.0), "2 s"),
        (client.DeadlineExceeded("Deadline Exceeded"), "kolm status"),
        (client.Unimplemented("Method not found!"), "kolm status"),
    ],
)
def test_an_error_comes_with_what_to_do(error: Exception, hint: str) -> None:
    found = failure_of(error).hint or ""
    assert (hint in found, bool(hint)) == (True, bool(found))


def test_a_bug_is_not_explained_away() -> None:
    assert as_command_error(ValueError("a bug")) is None
    assert as_command_error(OSError("no file in it")) is None
    assert as_command_error(ModuleNotFoundError("No module named 'services.typo'", name="services.typo")) is None


def test_a_package_that_is_not_installed_is_named_with_what_brings_it() -> None:
    error = failure_of(ModuleNotFoundError("No module named 'grpc'", name="grpc"))
    assert (error.exit_code, error.hint) == (2, brought_by("cli"))


_IMPORT = re.compile(r"^ *(?:from (\w+)[\w.]* import |import (\w+)[\w.]*(?: as \w+)?(?: +#.*)?$)", re.MULTILINE)


def test_each_package_that_kolm_verify_lacks_is_named_with_an_extra_that_has_it() -> None:
    small = tomllib.loads((ROOT / "packages/kolm-verify/pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    there = set(closure(map(Requirement, small)))
    of_module = packages_distributions()
    for module in _imported():
        names = {canonicalize_name(name) for name in of_module.get(module, [module])}
        assert module in EXTRAS or names & there, module
        assert module not in EXTRAS or names & set(closure(declared(EXTRAS[module]))), module


def _imported() -> set[str]:
    """Third-party modules that services and the ledger import."""
    sources = (path.read_text("utf-8") for top in ("services", "ledger") for path in (ROOT / top).rglob("*.py"))
    found = {a or b for source in sources for a, b in _IMPORT.findall(source)}
    return found - sys.stdlib_module_names - {"services", "ledger", "kolm", "_typeshed"}


SOURCES = ("requests/policy.py", "requests/served_heads.py")


def reasons() -> set[str]:
    """Reasons of methods that lack something, and reasons of the policy and of heads."""
    written = "".join((ROOT / "services" / "generation" / name).read_text(encoding="utf-8") for name in SOURCES)
    names = r"no_head|away|head_(?!cid)\w+|temperature|profile_unproven|logit_bias|min_p|halt\w*_?\w*|not_loaded"
    stated = set(re.findall(f'"({names})"', written))
    return {spec.missing for spec in METHODS if spec.missing} | stated


def test_every_reason_is_explained_and_no_other() -> None:
    page = (ROOT / "docs" / "serving.md").read_text("utf-8").partition("\n| reason | ")[2].partition("\n\n")[0]
    assert reasons() == set(FALLBACKS) == set(re.findall(r"^\| `(\w+)` ", page, re.MULTILINE))


MODELS = ("models", "list", "--json")
GOOD, KEYS = VECTORS / "bundles/good.tar.gz", VECTORS / "log/keys"
VERIFY = ("verify", str(GOOD), f"--trusted={KEYS}", "--max-unreplayable=1")


def kolm(words: tuple[str, ...], redirected: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command whose streams a shell has redirected."""
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "services.cli", *words]
    environment = {"PYTHONPATH": ":".join(sys.path), "COLUMNS": "200", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_the_output_is_one_line() -> None:
    done = kolm(MODELS, ">/dev/full")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_a_closed_stream_changes_no_result() -> None:
    assert (kolm(VERIFY, ">&-").returncode, kolm(VERIFY, "<&- >&- 2>&-").returncode) == (0, 0)
    failed = kolm(("replay", "none.json"), "2>&-")
    assert (failed.returncode, failed.stdout) == (4, "")


UNTRUE = ("verify", str(GOOD), f"--trusted={KEYS}", "--max-unreplayable=0")
FAULTY = ("monitor", "--once", f"--tiles={VECTORS / 'log'}", f"--trusted={KEYS}")


@pytest.mark.parametrize(
    ("words", "code"),
    [(UNTRUE, 3), ((*UNTRUE, "--json"), 3), ((*FAULTY, "--json"), 3), (FAULTY, 3), (("replay", "0"), 4)],
)
def test_readers_that_leave_change_no_exit_code(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    reader, unread = os.pipe()
    os.close(reader)
    environment = {"PYTHONPATH": ":".join(sys.path), "KOLM_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "services.cli", *words]
    done = subprocess.run(command, env=environment, stdout=unread, stderr=unread, check=False)
    os.close(unread)
    assert done.returncode == code


def test_characters_that_an_encoding_does_not_have_are_escaped() -> None:
    done = kolm(VERIFY, "", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2713" in done.stdout


class Gone(io.StringIO):
    """A terminal, or the end of a pipe, that is not there any more."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error, self.attempts = error, 0

    def write(self, text: str) -> int:
        self.attempts += 1
        raise self._error


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO])
def test_services_continue_without_a_reader(form: LogFormat, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Gone(OSError(number, os.strerror(number)))
    monkeypatch.setattr(sys, "stderr", gone)
    reporter = UpReporter(form)
    for _ in range(2):
        reporter.line("ledger", "listening")
    assert gone.attempts > 0


class Hanging:
    """A stream of one value that then waits until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.interrupted = False
        self._values = iter(["first"])

    def __iter__(self) -> Hanging:
        return self

    def __next__(self) -> str:
        for value in self._values:
            return value
        try:
            self.closed.wait(60)
        except KeyboardInterrupt:  # what would leave a lock of gRPC held
            self.interrupted = True
            raise
        raise StopIteration

    def close(self) -> None:
        self.closed.set()


def test_control_c_ends_the_stream_and_not_its_reader() -> None:
    stream: Any = Hanging()
    before = signal.getsignal(signal.SIGINT)
    came = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal has to come while a value is waited for
        for value in until_interrupted(stream):
            came.append(value)
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    assert (came, stream.closed.is_set(), stream.interrupted) == (["first"], True, False)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_of_the_stream_is_raised_and_the_stream_closed() -> None:
    class Broken(Hanging):
        def __next__(self) -> str:
            raise ConnectionError("gone")

    stream: Any = Broken()
    with pytest.raises(ConnectionError):
        list(until_interrupted(stream))
    assert stream.closed.is_set()
