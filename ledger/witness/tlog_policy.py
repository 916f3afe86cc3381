"""The verifier's trust file, C2SP `tlog-policy`: the logs, the witnesses, and the quorum of cosignatures.

Follows c2sp.org/tlog-policy, with Ed25519 keys only (signature type 1 for logs, 4 for witnesses).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ledger.errors import FormatError, ProofError, SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.note import COSIGNATURE, ED25519, Note, VerifierKey, verify_note
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.cosignature import cosigners

MAX_POLICY_BYTES = 64 * 1024
_NONE = "none"
_FORBIDDEN = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_WHITE_SPACE = re.compile(rb"[ \t]+")
_NUMBER = re.compile("[1-9][0-9]{0,5}")


@dataclass(frozen=True, slots=True)
class PolicyLog:
    """An accepted log; its key's name is the origin of its checkpoints."""

    key: VerifierKey
    url: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyWitness:
    """A witness, by its name within the policy. `url` is its submission prefix (tlog-witness)."""

    name: str
    key: VerifierKey
    url: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyGroup:
    """A group; it has witnessed a checkpoint if at least `threshold` of its members, witnesses or groups, have."""

    name: str
    threshold: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Witnessed:
    """A checkpoint that a policy accepts: the log's key that signed it, and the times of cosignatures by witness (POSIX
    s).
    """

    checkpoint: Checkpoint
    log_key: PublicKey
    cosigned: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Policy:
    """A trust policy. `groups` are in the order of their definition: members come before the group that holds them."""

    logs: tuple[PolicyLog, ...]
    witnesses: tuple[PolicyWitness, ...] = ()
    groups: tuple[PolicyGroup, ...] = ()
    quorum: str = _NONE

    @classmethod
    def of_log(cls, origin: str, keys: Iterable[PublicKey]) -> Policy:
        """A policy that accepts one log by its keys, without witnesses."""
        return cls(tuple(PolicyLog(VerifierKey(origin, key)) for key in keys))

    @classmethod
    def from_bytes(cls, data: bytes) -> Policy:
        """Read a policy file. Raises FormatError naming the line."""
        if len(data) > MAX_POLICY_BYTES:
            raise FormatError("policy", f"measures {len(data)} bytes, at most {MAX_POLICY_BYTES} are allowed")
        if _FORBIDDEN.search(data):
            raise FormatError("policy", "holds a control character other than tab and newline")
        reading = _Reading()
        for number, line in enumerate(data.split(b"\n"), 1):
            words = [word.decode("utf-8", "surrogateescape") for word in _WHITE_SPACE.split(line.strip(b" \t"))]
            if words[0] and not words[0].startswith("#"):
                reading.take(words, f"policy line {number}")
        return reading.policy()

    def to_bytes(self) -> bytes:
        """The policy file, with definitions before their uses."""
        lines = [" ".join(("log", log.key.to_text(), *_given(log.url))) for log in self.logs]
        for witness in self.witnesses:
            lines.append(" ".join(("witness", witness.name, witness.key.to_text(), *_given(witness.url))))
        lines += [" ".join(("group", group.name, str(group.threshold), *group.members)) for group in self.groups]
        return "".join(f"{line}\n" for line in [*lines, f"quorum {self.quorum}"]).encode("utf-8", "surrogateescape")

    @property
    def asks_for_witnesses(self) -> bool:
        """Whether a checkpoint needs a cosignature."""
        return self.quorum != _NONE

    def is_met_by(self, cosigned: Collection[str]) -> bool:
        """Whether cosignatures by these witnesses (names of the policy) are a quorum."""
        witnessing = {witness.name for witness in self.witnesses if witness.name in cosigned}
        for group in self.groups:
            if sum(member in witnessing for member in group.members) >= group.threshold:
                witnessing.add(group.name)
        return self.quorum == _NONE or self.quorum in witnessing

    def cosigned(self, note: Note) -> Mapping[str, int]:
        """The times of cosignatures on a note by witness of the policy, in POSIX seconds. Raises SignatureError for a
        bad line.
        """
        times = cosigners(note, [witness.key for witness in self.witnesses])
        return {witness.name: times[witness.key] for witness in self.witnesses if witness.key in times}

    def log_keys(self, origin: str) -> list[PublicKey]:
        """The keys of the log of this name."""
        return [log.key.key for log in self.logs if log.key.name == origin]

    def log_key(self, note: Note, checkpoint: Checkpoint) -> PublicKey:
        """The key of a log of the policy that signed a checkpoint's note. Raises SignatureError."""
        keys = self.log_keys(checkpoint.origin)
        if not keys:
            raise SignatureError(f"the policy knows no log {checkpoint.origin}")
        return verify_note(note, checkpoint.origin, keys)

    def open(self, data: bytes) -> Witnessed:
        """The checkpoint in a signed note, if a log of the policy signed it and a quorum of its witnesses cosigned it.

        Raises FormatError, SignatureError, and ProofError for too few cosignatures.
        """
        note = Note.from_bytes(data)
        checkpoint = Checkpoint.from_text(note.text)
        key = self.log_key(note, checkpoint)
        cosigned = self.cosigned(note)
        if not self.is_met_by(cosigned):
            raise ProofError(f"cosigned by {', '.join(cosigned) or 'no witness'}, not a quorum {self.quorum!r}")
        return Witnessed(checkpoint, key, cosigned)


class _Reading:
    """A policy file while it is read."""

    def __init__(self) -> None:
        self._logs: list[PolicyLog] = []
        self._witnesses: list[PolicyWitness] = []
        self._groups: list[PolicyGroup] = []
        self._quorum: str | None = None
        self._names: set[str] = set()
        self._members: set[str] = set()

    def take(self, words: list[str], line: str) -> None:
        match words:
            case ["log", key, *url] if len(url) <= 1:
                log = PolicyLog(_key(key, ED25519, line), *url)
                self._refuse_duplicate(log.key, [known.key for known in self._logs], line)
                self._logs.append(log)
            case ["witness", name, key, *url] if len(url) <= 1:
                witness = PolicyWitness(name, _key(key, COSIGNATURE, line), *url)
                self._refuse_duplicate(witness.key, [known.key for known in self._witnesses], line)
                self._define(name, line)
                self._witnesses.append(witness)
            case ["group", name, threshold, *members] if members:
                group = PolicyGroup(name, _threshold(threshold, len(members), line), tuple(members))
                for member in members:
                    self._take_member(member, line)
                self._define(name, line)
                self._groups.append(group)
            case ["quorum", name] if self._quorum is None:
                if name != _NONE and name not in self._names:
                    raise FormatError(line, f"{_shown(name)} is not a witness or group defined above")
                self._quorum = name
            case _:
                raise FormatError(line, f"is not a line of a policy, or a second quorum: {_shown(' '.join(words))}")

    def policy(self) -> Policy:
        if self._quorum is None:
            raise FormatError("policy", "has no quorum line; 'quorum none' asks for no witnesses")
        return Policy(tuple(self._logs), tuple(self._witnesses), tuple(self._groups), self._quorum)

    def _define(self, name: str, line: str) -> None:
        if name == _NONE or name in self._names:
            raise FormatError(line, f"{_shown(name)} is taken")
        self._names.add(name)

    def _take_member(self, name: str, line: str) -> None:
        if name not in self._names:
            raise FormatError(line, f"{_shown(name)} is not a witness or group defined above")
        if name in self._members:
            raise FormatError(line, f"{_shown(name)} is a member already, and may count only once")
        self._members.add(name)

    def _refuse_duplicate(self, key: VerifierKey, known: list[VerifierKey], line: str) -> None:
        if any(key.key == other.key for other in known):
            raise FormatError(line, f"the key of {key.name} is defined twice")


def _key(text: str, kind: int, line: str) -> VerifierKey:
    key = VerifierKey.from_text(text, line)
    if key.kind != kind:
        raise FormatError(line, f"expected a key of signature type {kind}, got type {key.kind}")
    return key


def _threshold(text: str, members: int, line: str) -> int:
    if text in ("any", "all"):
        return 1 if text == "any" else members
    if _NUMBER.fullmatch(text) is None or int(text) > members:
        raise FormatError(line, f"expected any, all, or a number from 1 to {members}")
    return int(text)


def _given(url: str | None) -> tuple[str, ...]:
    return () if url is None else (url,)


def _shown(text: str) -> str:
    return repr(text[:80].encode("utf-8", "replace").decode())
