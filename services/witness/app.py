"""The witness over HTTP (c2sp.org/tlog-witness): its routes and answers, and its memory on disk."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ledger.durable_file import make_folder
from ledger.errors import (
    Forked,
    FormatError,
    Inconsistent,
    LedgerError,
    StaleRequest,
    StoreError,
    UnknownLog,
    UnsignedCheckpoint,
)
from ledger.keys.note import VerifierKey
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.cosignature import MAX_REQUEST_BYTES, PATH, SEEN_PATH, SIZE_TYPE
from ledger.witness.witness import Accusation, SeenTree, Witness
from services.runtime.metrics import Metrics

_log = logging.getLogger(__name__)
_STATUS: tuple[tuple[type[LedgerError], int], ...] = (
    (FormatError, 400),
    (UnsignedCheckpoint, 403),
    (UnknownLog, 404),
    (Inconsistent, 422),
)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS latest
    (origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL, note BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS forks
    (number INTEGER PRIMARY KEY, origin TEXT NOT NULL, size INTEGER NOT NULL, root BLOB NOT NULL, note BLOB NOT NULL,
     against BLOB NOT NULL, UNIQUE (origin, size, root));
"""

_BUSY_SECONDS = 10.0
_MOST_FORKS = 16
"""The most forks kept of one log, so that a log cannot fill the disk. Each one is proof."""


def watch(registry: CollectorRegistry, memory: SqliteWitnessMemory, logs: Collection[str]) -> None:
    """Read the memory of these logs, by origin, at each scrape."""
    read = Metrics(registry).read
    read("kolm_witness_cosigned_entries", lambda: {(log,): memory.latest(log).size for log in logs})
    read("kolm_witness_forks", lambda: len(memory.accusations()))


def witness_app(witness: Witness, verifier_key: VerifierKey) -> Starlette:
    """POST /add-checkpoint; GET /seen?origin=… the newest cosigned checkpoint of a log, GET / and GET /vkey the
    witness's key, GET /health its health.
    """

    async def add_checkpoint(request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return PlainTextResponse(f"at most {MAX_REQUEST_BYTES} bytes are accepted\n", 413)
        try:
            return PlainTextResponse(await run_in_threadpool(witness.add_checkpoint, body))
        except LedgerError as error:
            return _refusal(error)

    async def seen(request: Request) -> Response:
        try:
            note = await run_in_threadpool(witness.seen, request.query_params.get("origin", ""))
            return PlainTextResponse(note)
        except LedgerError as error:
            return _refusal(error)

    async def vkey(_: Request) -> Response:
        return PlainTextResponse(verifier_key.to_text() + "\n")

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return Starlette(
        routes=[
            Route(f"/{PATH}", add_checkpoint, methods=["POST"]),
            Route(f"/{SEEN_PATH}", seen),
            Route("/", vkey),
            Route("/vkey", vkey),
            Route("/health", health),
        ]
    )


async def _body(request: Request) -> bytes | None:
    """The body, None if it is larger than any request."""
    received = bytearray()
    async for piece in request.stream():
        received += piece
        if len(received) > MAX_REQUEST_BYTES:
            return None
    return bytes(received)


def _refusal(error: LedgerError) -> Response:
    if isinstance(error, StaleRequest | Forked):
        if isinstance(error, Forked):
            _log.error("keeping proof of a forked log: %s", error)
        return Response(f"{error.size}\n", 409, {"content-type": SIZE_TYPE})  # exactly this type, without a charset
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
    if status == 503:
        _log.error("cannot answer", exc_info=error)
        return PlainTextResponse("the witness's memory failed; ask again\n", 503)
    return PlainTextResponse(f"{error}\n", status)


class SqliteWitnessMemory:
    """`ledger.witness.witness.WitnessMemory` in SQLite. A connection for each call, because calls come from any
    thread.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, created with its folder if missing. Raises StoreError."""
        self._path = path
        try:
            make_folder(path.parent, 0o700)
        except OSError as error:
            raise StoreError(f"cannot create {path.parent}: {error.strerror}") from None
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(_SCHEMA)

    def latest(self, origin: str) -> SeenTree:
        with self._connection() as connection:
            return _latest(connection, origin)

    def advance(self, origin: str, old: SeenTree, new: SeenTree) -> bool:
        with self._writing() as connection:
            if _latest(connection, origin) != old:
                return False
            connection.execute(
                "INSERT INTO latest VALUES (?, ?, ?, ?) ON CONFLICT (origin) DO UPDATE SET "
                "size = excluded.size, root = excluded.root, note = excluded.note",
                (origin, new.size, new.root, new.note),
            )
        return True

    def accuse(self, tree: Checkpoint, accusation: Accusation) -> None:
        with self._writing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO forks (origin, size, root, note, against) "
                "SELECT ?, ?, ?, ?, ? WHERE (SELECT count(*) FROM forks WHERE origin = ?) < ?",
                (tree.origin, tree.size, tree.root, accusation.note, accusation.against, tree.origin, _MOST_FORKS),
            )

    def accusations(self) -> list[Accusation]:
        """The proofs that a log has signed two trees of one size, oldest first."""
        with self._connection() as connection:
            rows = connection.execute("SELECT note, against FROM forks ORDER BY number").fetchall()
        return [Accusation(note, against) for note, against in rows]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """An exclusive transaction, on the disk at the end of the block."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous=FULL")
                yield connection
        except sqlite3.Error as error:
            raise StoreError(f"the witness's memory failed: {error}") from error


def _latest(connection: sqlite3.Connection, origin: str) -> SeenTree:
    row = connection.execute("SELECT size, root, note FROM latest WHERE origin = ?", (origin,)).fetchone()
    return SeenTree() if row is None else SeenTree(*row)
