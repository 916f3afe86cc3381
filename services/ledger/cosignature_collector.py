"""The collector of cosignatures: when the log has grown, it sends the newest checkpoint to every witness of the policy.

It runs in the background of the ledger service, and no call waits for it: a witness that is slow, dead or lying costs a
log line. Witnesses are asked together, so that a quorum forms on the same checkpoint; a witness without an answer to
the previous request is left out until it answers or times out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ledger.errors import FormatError, Inconsistent, LedgerError
from ledger.keys.note import Note
from ledger.log.reader import LedgerReader
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.cosignature import AddCheckpoint, cosigning_time, read_size
from ledger.witness.cosignature_store import CosignatureStore
from ledger.witness.tlog_policy import Policy, PolicyWitness
from services.runtime.http.http_call import on_own_thread
from services.runtime.process import Outage

_log = logging.getLogger(__name__)

Post = Callable[[str, bytes], tuple[int, bytes]]
"""(submission prefix, body) → (HTTP status, body) of add-checkpoint. Blocking; raises OSError."""

Ask = Callable[[str, str], bytes]
"""(submission prefix, origin) → the witness's newest note of the log. Blocking; raises OSError."""


def ask_none(prefix: str, origin: str) -> bytes:
    """The default, for witnesses that show no checkpoint. Raises OSError."""
    raise OSError(f"{prefix} shows no checkpoint of {origin}")


class CosignatureCollector:
    """Asks the witnesses of a policy. On one event loop. Reads of the log run on the shared threads, requests to
    witnesses on others.
    """

    def __init__(
        self,
        reader: LedgerReader,
        policy: Policy,
        notes: CosignatureStore,
        post: Post,
        interval: float,
        ask: Ask = ask_none,
    ) -> None:
        """`interval`: seconds between two rounds. `ask` requests a witness's evidence against the log."""
        self._reader = reader
        self._policy = policy
        self._notes = notes
        self._post = post
        self._ask_seen = ask
        self._interval = interval
        self._witnesses = [witness for witness in policy.witnesses if witness.url is not None]
        self._known: dict[str, int] = {}  # the cosigned size by each witness's statement
        self._asked: set[str] = set()  # witnesses without an answer yet
        self._silent: dict[str, bool] = {}  # witnesses that do not cosign; True if one has shown that the log forked

    async def run(self) -> None:
        """Collect until cancelled. Run as a task."""
        outage = Outage(_log, "collect cosignatures", LedgerError, OSError, bugs=True)
        async with asyncio.TaskGroup() as asking:
            while True:
                with outage:
                    await self._ask_all(asking)
                await asyncio.sleep(self._interval)

    def lags(self) -> dict[str, int]:
        """The number of entries that each witness has not cosigned, by its statement. From any thread."""
        size = self._reader.head().size
        return {each.name: max(size - self._known.get(each.name, 0), 0) for each in self._witnesses}

    def silent(self) -> dict[str, bool]:
        """The witnesses that do not cosign; True if one shows, by the log's own signature, that this log has forked.
        From any thread.
        """
        return dict(self._silent)

    async def round(self) -> None:
        """Ask once, and wait for every answer."""
        async with asyncio.TaskGroup() as asking:
            await self._ask_all(asking)

    async def _ask_all(self, asking: asyncio.TaskGroup) -> None:
        """Start requests to all witnesses that have not cosigned the newest checkpoint, except pending ones."""
        head = self._reader.head()
        kept = await asyncio.to_thread(self._notes.note, head.size)
        note = Note.from_bytes(kept or head.note)
        cosigned = self._policy.cosigned(note)
        self._known |= {witness.name: head.size for witness in self._witnesses if witness.name in cosigned}
        for witness in self._witnesses:
            if witness.name not in cosigned and witness.name not in self._asked:
                self._asked.add(witness.name)
                asking.create_task(self._ask(witness, head.size, note))

    async def _ask(self, witness: PolicyWitness, size: int, note: Note) -> None:
        try:
            cosigned = await self._cosigned(witness, size, note)
            await asyncio.to_thread(self._notes.record, size, cosigned)
        except Exception as error:  # of any kind: it must not affect the other witnesses
            forked = isinstance(error, Inconsistent)
            if self._silent.get(witness.name) is not forked:
                level = logging.ERROR if forked else logging.WARNING
                bug = None if isinstance(error, LedgerError | OSError) else error
                _log.log(level, "receiving no cosignature: witness %s: %s", witness.name, error, exc_info=bug)
            self._silent[witness.name] = forked
        else:
            if witness.name in self._silent:
                _log.info("receiving cosignatures again: witness %s", witness.name)
            self._silent.pop(witness.name, None)
        finally:
            self._asked.discard(witness.name)

    async def _cosigned(self, witness: PolicyWitness, size: int, note: Note) -> Note:
        """The note with this witness's line. Raises LedgerError, OSError."""
        old = self._known.get(witness.name, 0)
        status, body = await self._send(witness, min(old, size), size, note)
        if status == 409:  # it knows another size: usual at the start, and after restarts
            self._known[witness.name] = read_size(body)
            if self._known[witness.name] > size:
                claim = f"it claims to have seen {self._known.pop(witness.name)} entries, this log has {size}"
                raise await self._contradicted(witness, claim)
            status, body = await self._send(witness, self._known[witness.name], size, note)
            if status == 409 and read_size(body) == size:
                raise await self._contradicted(witness, f"it claims to have cosigned another tree of {size} entries")
        words = body[:200].decode("utf-8", "replace").strip()
        if status == 422:
            raise await self._contradicted(witness, f"it claims to have cosigned another history: {words}")
        if status != 200:
            raise FormatError("answer", f"HTTP {status}: {words}")
        cosigned = await asyncio.to_thread(self._with_own_line, witness, note, body)
        self._known[witness.name] = size
        return cosigned

    async def _contradicted(self, witness: PolicyWitness, claim: str) -> LedgerError:
        """Check a claim against the log. It counts if the witness shows a checkpoint that a key of the log has signed
        and that this log does not extend.
        """
        origin = self._reader.head().checkpoint.origin
        try:
            shown = await asyncio.wrap_future(on_own_thread(partial(self._ask_seen, str(witness.url), origin)))
            return await asyncio.to_thread(self._judged, claim, origin, shown)
        except (LedgerError, OSError) as error:
            return FormatError("answer", f"{claim}; it shows no checkpoint that the log has signed: {error}")

    def _judged(self, claim: str, origin: str, shown: bytes) -> LedgerError:
        note = Note.from_bytes(shown)
        theirs = Checkpoint.from_text(note.text)
        if theirs.origin != origin:
            raise FormatError("checkpoint", f"is of the log {theirs.origin!r}")
        self._policy.log_key(note, theirs)
        if theirs.size > self._reader.head().size:
            return Inconsistent(
                f"it shows a checkpoint over {theirs.size} entries that the log has signed and does not hold: was an "
                "old backup restored?"
            )
        if self._reader.root(theirs.size) != theirs.root:
            return Inconsistent(f"it shows another tree of {theirs.size} entries that the log has signed")
        return FormatError("answer", f"{claim}; the checkpoint that it shows is of this log")

    def _with_own_line(self, witness: PolicyWitness, note: Note, body: bytes) -> Note:
        """The note with the newest cosignature of an answer, and no other of its lines. Raises FormatError,
        SignatureError.
        """
        key, answered = witness.key, Note.from_bytes(Note(note.text, note.signatures[:1]).to_bytes() + body)
        if witness.name not in self._policy.cosigned(answered):
            raise FormatError("answer", "carries no cosignature by the key that the policy has for it")
        own = [line for line in answered.signatures if (line.name, line.key_id) == (key.name, key.key_id)]
        newest = max(own, key=lambda line: cosigning_time(note.text, line, key))
        return replace(note, signatures=(*note.signatures, newest))

    async def _send(self, witness: PolicyWitness, old: int, size: int, note: Note) -> tuple[int, bytes]:
        request = await asyncio.to_thread(self._request, old, size, note)
        return await asyncio.wrap_future(on_own_thread(partial(self._post, str(witness.url), request)))

    def _request(self, old: int, size: int, note: Note) -> bytes:
        proof = self._reader.consistency_proof(old, size)
        log_lines = tuple(line for line in note.signatures if line.name == note.text.split("\n", 1)[0])
        return AddCheckpoint(old, proof, Note(note.text, log_lines).to_bytes()).to_bytes()
