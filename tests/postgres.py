"""A PostgreSQL of the tests' own: made in a temporary folder, reached by a socket there, gone afterwards.

Uses the binaries of the machine (Debian: `postgresql-15`). PostgreSQL refuses to run as root, so root starts it as
another user.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REQUIRED = "KOLM_TESTS_NEED_POSTGRES"
"""Set if a missing PostgreSQL is a failure and not a reason to skip (continuous integration)."""

_OWNER = "kolm"
_COLLATION = "tr-TR"
"""A linguistic collation, as of most installations, which is no order of bytes. Its lower-case I has no dot."""


class PostgresMissing(Exception):
    """This machine has no PostgreSQL server."""


@contextmanager
def running_cluster(
    *, durable: bool = False, listen: str = "", network: str | None = None, within: Sequence[str] = ()
) -> Iterator[Path]:
    """The folder whose socket answers, as superuser `kolm`. Raises PostgresMissing.

    A `durable` cluster waits for the disk at each commit, as in production. With `listen` it also answers there, to
    all of `network` (CIDR). Its command begins with `within`.
    """
    binaries, user = _binaries(), _user()
    folder = Path(tempfile.mkdtemp(prefix="kolm-postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    options = f"-c listen_addresses='{listen}' -c fsync={'on' if durable else 'off'} -c max_connections=60 -k {folder}"
    options += "" if durable else " -c autovacuum=off -c full_page_writes=off"
    data, control = str(folder / "data"), str(binaries / "pg_ctl")
    try:
        made = (str(binaries / "initdb"), "-D", data, "-U", _OWNER, "-A", "trust", "-E", "UTF8", "--no-sync")
        _run(user, *made, "--locale-provider=icu", f"--icu-locale={_COLLATION}")
        if network is not None:
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {network} trust\n")
        _run(user, control, "-D", data, "-l", str(folder / "log"), "-o", options, "-w", "start", within=within)
        try:
            yield folder
        finally:
            _run(user, control, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def url_of(folder: Path, database: str) -> str:
    return f"postgresql+psycopg://{_OWNER}@/{database}?host={folder}"


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise PostgresMissing("no PostgreSQL server on this machine (Debian: apt-get install postgresql-15)")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent


def _user() -> str | None:
    """The user as whom root starts the server; None if we are not root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _run(user: str | None, *command: str, within: Sequence[str] = ()) -> None:
    # By runuser, not by subprocess's own `user`: that one forks in a way that runs gRPC's fork handlers, which abort.
    prefix = () if user is None else ("runuser", "-u", user, "--")
    # To a file, not a pipe: the server inherits it and would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [*within, *prefix, *command], cwd="/", stdout=output, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{command[0]} failed: {output.read().decode(errors='replace')}")
