"""Lines of the documentation, run as by a shell: commands in this process, servers in processes of their own.

Parts that depend on the machine are replaced: addresses on kolm's ports, folders at the root of the file system, and
the words of `Shell.places`.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

from services.cli.init import PORTS
from services.cli.main import app
from services.cli.up.local_services import Addresses
from services.generation.target.model_path import model_path
from tests.documented import ROOT
from tests.e2e.command import PATIENCE, Kolm, children, is_running, until, up
from tests.forked import FORKED

_SHORTER = {
    "generate": ("--max-tokens=16",),
    "chat": ("--max-tokens=16",),
    "monitor": ("--once",),
    "heads kscore": ("--max-tokens=8", "--limit=2"),
    "heads train": ("--minutes=0.02", "--max-tokens=8", "--unroll=2", "--held-out=0.3"),
}
"""Answers, looks and trainings end sooner than on the pages: what is given last counts."""

_SERVICES = {str(port): name for name, port in PORTS.items()}
_ADDRESS = re.compile(rf"(?:ledger(?:\.example)?|127\.0\.0\.1):({'|'.join(_SERVICES)})")


@dataclass(slots=True)
class Shell:
    """Runs lines in `folder`, which is the working directory. `addresses`: of services, by name."""

    folder: Path
    addresses: dict[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def kolm(self) -> Kolm:
        """The command with the addresses of the services."""
        none = dict.fromkeys(("generation", "ledger", "auditor"), "")
        return Kolm(Addresses(**(none | self.addresses)), self.folder / ".kolm")

    def run(self, line: str) -> str:
        """Run a line with its pipe, its redirection and the commands after `&&`; each has to succeed. Returns its
        output.
        """
        into, _, command = line.rpartition(" | ")
        piped = subprocess.check_output(shlex.split(into), cwd=ROOT, text=True)[:400] if into else ""
        command, _, out = command.partition(" > ")
        printed = ""
        for each in command.split(" && "):
            words = _shorter(self.words(each)[1:])
            done = self.kolm(*words, given="Where is my parcel?\n" if words[0] == "chat" else piped)
            assert done.returncode == 0, f"{each}: {done.stdout}{done.stderr}"
            if out:
                Path(out).write_text(done.stdout)
            printed += done.stdout + done.stderr
        return printed

    @contextmanager
    def serving(self, line: str, **environment: str) -> Iterator[None]:
        """`kolm serve SERVICE …` on a free port, in a process. Ends with exit code 0 on SIGTERM."""
        assigned, _, command = line.rpartition("kolm serve ")
        service, *flags = self.words(command)
        ready, log = self.folder / f"{service}.address", self.folder / f"{service}.log"
        own = f"KOLM_{service.upper()}_"
        variables = {
            **os.environ,
            f"{own}LISTEN": "127.0.0.1:0",
            f"{own}READY_FILE": str(ready),
            **dict(each.split("=", 1) for each in self.words(assigned)),
            **environment,
        }
        process = FORKED.Process(target=_serve, args=([service, *flags], variables, self.folder, log))
        process.start()
        try:
            until(lambda: ready.exists() or process.exitcode is not None)
            assert process.exitcode is None, f"{line}: {log.read_text()}"
            yield self.addresses.update({service: ready.read_text().strip()})
            process.terminate()
            process.join(PATIENCE)
            assert process.exitcode == 0, f"{line}: {log.read_text()}"
        finally:
            process.kill()
            process.join()

    def words(self, command: str) -> list[str]:
        """The words of a command, with this machine's names in place of the pages'."""
        return [self._here(word) for word in shlex.split(command)]

    def _here(self, word: str) -> str:
        if word in ("RECEIPT_ID", "0199…"):
            return str(self.kolm.json("receipts", "list")[-1]["receipt_id"])
        if word.endswith("<digits>"):
            (pulled,) = (self.folder / ".kolm/heads").glob("[0-9a-f]*")
            return str(pulled)
        for place, here in self.places.items():
            word = word.replace(place, here)
        word = _ADDRESS.sub(lambda found: self.addresses[_SERVICES[found[1]]], word)
        return re.sub(r"(?:^|(?<==))/(?=var/lib/kolm|srv/www)", f"{self.folder}/", word)


@contextmanager
def started(line: str, folder: Path, *more: str, places: Mapping[str, str] = MappingProxyType({})) -> Iterator[Shell]:
    """A shell that asks the services of `kolm up …`, on free ports. SIGTERM ends them all, with exit code 0."""
    shell = Shell(folder, places=places)
    flags = shell.words(line)[2:]
    with up(folder / ".kolm", model_path(Path("smollm2")), *flags, *more) as (process, kolm):
        shell.addresses = {name: address for name, address in asdict(kolm.addresses).items() if address}
        yield shell
        services = children(process)
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert not any(map(is_running, services))


def _shorter(words: Sequence[str]) -> list[str]:
    return [*words, *(_SHORTER.get(words[0]) or _SHORTER.get(" ".join(words[:2]), ()))]


def _serve(words: list[str], environment: dict[str, str], folder: Path, log: Path) -> None:
    """In the server's process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    app(["serve", *words], prog_name="kolm")
