"""Access control: a table of the roles that each RPC needs, and the check of a call's principal against it. Fails
closed.

An RPC that is missing in the table is always refused. `Principal.sees` and `Principal.reads_content` decide which data
of other tenants an answer contains.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from services.runtime.credentials import (
    ANONYMOUS,
    DEFAULT_TENANT,
    LOCAL_CALLER,
    ROLES,
    TOKEN_PREFIX,
    Credential,
    Principal,
    PrincipalsError,
    Role,
    read_principals,
    token_digest,
)
from services.runtime.errors import PermissionDenied, Unauthenticated, Unavailable

_log = logging.getLogger(__name__)


Permission = frozenset[Role] | None
"""The roles of which one is needed; None if no credential is needed."""

PUBLIC: Final[Permission] = None

current_principal: ContextVar[Principal] = ContextVar("current_principal", default=ANONYMOUS)
"""Set by the interceptor. Threads of `asyncio.to_thread` have it, threads of `run_in_executor` do not."""

AUTHORIZATION_KEY = "authorization"
_CERTIFICATE_NAMES = ("x509_common_name", "x509_subject_alternative_name")
_HOW = "send `authorization: Bearer kolm_…` (KOLM_TOKEN, KOLM_TOKEN_FILE); `kolm tokens create` makes a token"

_NO_PROOF = "anybody"
"""The proof that every call brings."""

_Stamp = tuple[int, int, int]


def _roles(*roles: Role) -> frozenset[Role]:
    return frozenset(roles)


_CALLERS = _roles("generate", "read", "audit", "operate", "observe")
_RECEIPTS = _roles("generate", "read", "audit")
_MEMBERS = _roles(*ROLES) - {"observe"}
_HEADS = _roles("generate", "read", "audit", "publish", "operate")
_WRITERS = _roles("append", "operate")

_SERVICES: Mapping[str, Mapping[str, Permission]] = {
    "kolm.generation.v1.GenerationService": {
        "Generate": _roles("generate"),
        "GenerateStream": _roles("generate"),
        "Tokenize": _roles("generate", "audit"),
        "Detokenize": _roles("generate", "audit"),
        "GetModelInfo": _CALLERS,
        "GetLoad": _CALLERS,
    },
    "kolm.ledger.v1.LedgerService": {
        "AppendEntry": _WRITERS,
        "AppendEntries": _WRITERS,
        "GetEntry": _MEMBERS,
        "GetReceipt": _RECEIPTS,
        "ListReceipts": _RECEIPTS,
        "WatchEntries": _MEMBERS,
        "GetCheckpoint": PUBLIC,
        "GetInclusionProof": PUBLIC,
        "GetCoseReceipt": _RECEIPTS,
        "AnswerPromise": _RECEIPTS,
        "GetConsistencyProof": PUBLIC,
        "GetTile": PUBLIC,
        "ListVerdicts": _RECEIPTS,
        "GetHaltState": PUBLIC,
        "EraseContent": _roles("generate", "operate"),
        "ExportBundle": _RECEIPTS,
    },
    "kolm.registry.v1.RegistryService": {
        "PublishHead": _roles("publish"),
        "GetHead": _HEADS,
        "ListHeads": _HEADS,
        "ResolveHead": _HEADS,
        "WithdrawHead": _roles("publish", "operate"),
        "RecordKScore": _roles("publish"),
        "FindMissingBlobs": _roles("publish"),
        "UploadBlob": _roles("publish"),
        "DownloadBlob": _HEADS,
    },
    "kolm.telemetry.v1.TelemetryService": {"GetMetrics": _CALLERS},
    "grpc.health.v1.Health": {"Check": PUBLIC, "Watch": PUBLIC, "List": PUBLIC},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": PUBLIC},
}

PERMISSIONS: Mapping[str, Permission] = {
    f"/{service}/{rpc}": permission for service, rpcs in _SERVICES.items() for rpc, permission in rpcs.items()
}
"""Permissions by the full name of the RPC, `/package.Service/Method`."""


def caller() -> Principal:
    """The caller; ANONYMOUS outside of calls."""
    return current_principal.get()


def tenant_of_call(named: str, field: str = "tenant") -> str:
    """The tenant on whose behalf the caller acts, if the request names `named`; an empty text names none.

    Raises PermissionDenied for a tenant that is not the caller's.
    """
    principal = caller()
    if principal.tenant is None:
        return named or DEFAULT_TENANT
    if named not in ("", principal.tenant):
        who = f"the credential of {principal.name}" if principal.authenticated else "a call without a token"
        raise PermissionDenied(
            f"{field}: {who} is for the tenant {principal.tenant!r}; leave {field} out, or bring a token of the other",
            reason="FOREIGN_TENANT",
        )
    return principal.tenant


class Call(Protocol):
    """The part of a servicer's context that identifies the caller."""

    def invocation_metadata(self) -> Iterable[Any] | None: ...
    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...
    def peer(self) -> str: ...


class Access:
    """The principals of one server, and the roles that each RPC needs. Safe between threads.

    A changed file is read again at the next call. While it cannot be read, all calls are refused but the open ones: a
    mistake in a revocation must not leave the revoked token valid.

    Without a file there are no principals, and the only valid token is `local`, which the server made for this start:
    its holders may generate for the default tenant. A call's address grants nothing, since a proxy on this machine
    forwards calls of others.
    """

    def __init__(
        self,
        file: Path | None = None,
        permissions: Mapping[str, Permission] = PERMISSIONS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        local: str | None = None,
    ) -> None:
        """Raises PrincipalsError if the file cannot be used."""
        self._file = file
        self._permissions = permissions
        self._clock = clock
        self._local = None if local is None else token_digest(local)
        self._known: tuple[_Stamp | None, Mapping[str, Credential] | None] = (None, None)
        if file is not None:
            self._known = (_stamp(file), _by_proof(read_principals(file)))

    def admitted(self, method: str, call: Call) -> Principal:
        """The principal of a call to `/package.Service/Method`, who may make it.

        Raises Unauthenticated, PermissionDenied, Unavailable. The roles are all that is checked here.
        """
        if method not in self._permissions:
            raise PermissionDenied(f"{_rpc(method)} is not available on this server", reason="NOT_PERMITTED")
        needed = self._permissions[method]
        if needed is None:
            return ANONYMOUS
        principal = self._principal(call)
        if not principal.roles & needed:
            raise self._refusal(method, needed, principal)
        return principal

    def caller_of(self, call: Call) -> str:
        """The caller, for limits: a principal or, without a credential, a machine's address."""
        try:
            principal = self._principal(call)
        except (Unauthenticated, Unavailable):
            principal = ANONYMOUS
        return principal.name if principal.authenticated else call.peer().rpartition(":")[0]

    def is_open(self, method: str) -> bool:
        """Whether it needs no credential."""
        return method in self._permissions and self._permissions[method] is None

    def _principal(self, call: Call) -> Principal:
        token = _bearer(call.invocation_metadata() or ())
        if token is not None:
            principal = self._valid(token_digest(token))
            if principal is None:
                raise Unauthenticated("this token is unknown here, revoked or expired", reason="BAD_TOKEN")
            return principal
        return self._of_names(call.auth_context()) or self._valid(_NO_PROOF) or ANONYMOUS

    def _of_names(self, shown: Mapping[str, Iterable[bytes]]) -> Principal | None:
        """The principal of the client's certificate, which TLS has verified. Raises Unauthenticated for several."""
        for key in _CERTIFICATE_NAMES:
            proofs = [_of_certificate(name.decode("utf-8", "replace")) for name in shown.get(key, ())]
            principals = {principal for proof in proofs if (principal := self._valid(proof)) is not None}
            if len(principals) > 1:
                problem = "the alternative names of this certificate are several principals here; expected one"
                raise Unauthenticated(problem, reason="BAD_CERTIFICATE")
            if principals:
                return principals.pop()
        return None

    def _valid(self, proof: str) -> Principal | None:
        if self._file is None:
            return LOCAL_CALLER if proof == self._local else None
        credential = self._credentials().get(proof)
        return credential.principal if credential is not None and credential.valid_at(self._clock()) else None

    def _credentials(self) -> Mapping[str, Credential]:
        assert self._file is not None
        stamp = _stamp(self._file)
        if stamp != self._known[0]:
            try:
                self._known = (stamp, _by_proof(read_principals(self._file)))
            except PrincipalsError as error:
                _log.error("refusing all calls until the principals file is fixed: %s", error)
                self._known = (stamp, None)
        credentials = self._known[1]
        if credentials is None:
            raise Unavailable(
                "the server cannot read its principals; its log has the cause", reason="PRINCIPALS_UNREADABLE"
            )
        return credentials

    def _refusal(self, method: str, needed: frozenset[str], principal: Principal) -> Exception:
        want = f"{_rpc(method)} needs {_either(needed)}"
        if principal.authenticated:
            has = _either(principal.roles) if principal.roles else "none"
            return PermissionDenied(f"{want}; {principal.name} has {has}", reason="ROLE_MISSING")
        if self._file is None and "generate" not in needed:
            how = "make tokens by `kolm tokens create` and start the server with --principals FILE"
            return PermissionDenied(f"{want}, and no principal of this server has it: {how}", reason="NO_PRINCIPALS")
        return Unauthenticated(f"{want}: {_HOW}", reason="TOKEN_REQUIRED")


def _by_proof(credentials: Sequence[Credential]) -> Mapping[str, Credential]:
    return {_proof(each): each for each in credentials}


def _proof(credential: Credential) -> str:
    if credential.anybody:
        return _NO_PROOF
    return credential.token_sha256 or _of_certificate(credential.certificate or "")


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token; None if no credential was sent. Raises Unauthenticated for another scheme, and for two credentials: a
    proxy may have checked the other.
    """
    sent = [value for key, value in metadata if key == AUTHORIZATION_KEY]
    if not sent:
        return None
    scheme, _, token = (sent[0] if len(sent) == 1 and isinstance(sent[0], str) else "").partition(" ")
    if scheme.lower() != "bearer" or not token.startswith(TOKEN_PREFIX):
        raise Unauthenticated(f"expected one {AUTHORIZATION_KEY}: Bearer {TOKEN_PREFIX}…", reason="BAD_TOKEN")
    return token


def _of_certificate(name: str) -> str:
    return f"certificate:{name}"


def _stamp(file: Path) -> _Stamp | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size


def _rpc(method: str) -> str:
    return method.rpartition("/")[2]


def _either(roles: frozenset[str]) -> str:
    return ("the role " if len(roles) == 1 else "one of the roles ") + ", ".join(sorted(roles))
