"""Access control: finds the principal of a call, and checks it against the table of permissions. Fails closed."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from services.runtime.access.credential import TOKEN_PREFIX, Credential, token_digest
from services.runtime.access.permissions import PERMISSIONS, Permission
from services.runtime.access.principal import LOCAL_CALLER, NOBODY, Principal
from services.runtime.access.principals_file import PrincipalsError, read_principals
from services.runtime.errors import PermissionDenied, Unauthenticated, Unavailable

_log = logging.getLogger(__name__)

AUTHORIZATION_KEY = "authorization"

_CERTIFICATE_NAMES = ("x509_subject_alternative_name", "x509_common_name")
_HOW = "send `authorization: Bearer kolm_…` (KOLM_TOKEN, KOLM_TOKEN_FILE); `kolm tokens create` makes a token"

_Stamp = tuple[int, int, int]


class Call(Protocol):
    """The part of a servicer's context that tells of the caller."""

    def invocation_metadata(self) -> Iterable[Any] | None: ...
    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...
    def peer(self) -> str: ...


class Access:
    """The principals of one server, and what each RPC takes. Safe between threads.

    The file is read again when it has changed, at the next call. While it cannot be read nobody gets in but to what is
    open to anybody: a revocation that somebody has botched must not leave the revoked token valid.

    Without a file there are no principals, no credential is looked at, and callers from this machine may generate for
    the default tenant.
    """

    def __init__(
        self,
        file: Path | None = None,
        permissions: Mapping[str, Permission] = PERMISSIONS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Raises PrincipalsError where the file cannot be used."""
        self._file = file
        self._permissions = permissions
        self._clock = clock
        self._known: tuple[_Stamp | None, Mapping[str, Credential] | None] = (None, None)
        if file is not None:
            self._known = (_stamp(file), _by_proof(read_principals(file)))

    def admitted(self, method: str, call: Call) -> Principal:
        """The principal of a call to `/package.Service/Method`, who may make it.

        Raises Unauthenticated, PermissionDenied, Unavailable. The roles are all that is checked here.
        """
        if method not in self._permissions:
            raise PermissionDenied(f"{_rpc(method)} is not open to anybody on this server", reason="NOT_PERMITTED")
        needed = self._permissions[method]
        if needed is None:
            return NOBODY
        principal = self._principal(call)
        if not principal.roles & needed:
            raise self._refusal(method, needed, principal)
        return principal

    def caller_of(self, call: Call) -> str:
        """Whose call it is, for limits: a principal's or, without a credential, that of a machine's address."""
        try:
            principal = self._principal(call)
        except (Unauthenticated, Unavailable):
            principal = NOBODY
        return principal.name if principal.authenticated else call.peer().rpartition(":")[0]

    def is_open(self, method: str) -> bool:
        """Whether anybody may call it."""
        return method in self._permissions and self._permissions[method] is None

    def _principal(self, call: Call) -> Principal:
        local = is_loopback(call.peer())
        if self._file is None:
            return LOCAL_CALLER if local else NOBODY
        token = _bearer(call.invocation_metadata() or ())
        if token is not None:
            principal = self._valid(token_digest(token))
            if principal is None:
                raise Unauthenticated("this token is unknown here, revoked or expired", reason="BAD_TOKEN")
            return principal
        proofs = [*map(_of_certificate, _certificate_names(call)), *(["loopback"] if local else [])]
        return next(filter(None, map(self._valid, proofs)), NOBODY)

    def _valid(self, proof: str) -> Principal | None:
        credential = self._credentials().get(proof)
        return credential.principal if credential is not None and credential.valid_at(self._clock()) else None

    def _credentials(self) -> Mapping[str, Credential]:
        assert self._file is not None
        stamp = _stamp(self._file)
        if stamp != self._known[0]:
            try:
                self._known = (stamp, _by_proof(read_principals(self._file)))
            except PrincipalsError as error:
                _log.error("nobody gets in until this is mended: %s", error)
                self._known = (stamp, None)
        credentials = self._known[1]
        if credentials is None:
            raise Unavailable("the server cannot read who may call; its log says why", reason="PRINCIPALS_UNREADABLE")
        return credentials

    def _refusal(self, method: str, needed: frozenset[str], principal: Principal) -> Exception:
        want = f"{_rpc(method)} needs {_either(needed)}"
        if principal.authenticated:
            has = _either(principal.roles) if principal.roles else "none"
            return PermissionDenied(f"{want}; {principal.name} has {has}", reason="ROLE_MISSING")
        if self._file is None:
            how = "make tokens by `kolm tokens create` and start the server with --principals FILE"
            return PermissionDenied(f"{want}, and this server knows nobody who has it: {how}", reason="NO_PRINCIPALS")
        return Unauthenticated(f"{want}: {_HOW}", reason="TOKEN_REQUIRED")


def is_loopback(peer: str) -> bool:
    """Whether gRPC's name of a peer (`ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`, `unix:`) is on this machine."""
    kind, _, place = unquote(peer).partition(":")
    if kind == "unix":
        return True
    try:
        address = ipaddress.ip_address(place.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _by_proof(credentials: Sequence[Credential]) -> Mapping[str, Credential]:
    return {_proof(each): each for each in credentials}


def _proof(credential: Credential) -> str:
    if credential.loopback:
        return "loopback"
    return credential.token_sha256 or _of_certificate(credential.certificate or "")


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token, None where no credential was sent. Raises Unauthenticated for another scheme, and for two of them: a
    proxy may have checked the other one.
    """
    sent = [value for key, value in metadata if key == AUTHORIZATION_KEY]
    if not sent:
        return None
    scheme, _, token = (sent[0] if len(sent) == 1 and isinstance(sent[0], str) else "").partition(" ")
    if scheme.lower() != "bearer" or not token.startswith(TOKEN_PREFIX):
        raise Unauthenticated(f"expected one {AUTHORIZATION_KEY}: Bearer {TOKEN_PREFIX}…", reason="BAD_TOKEN")
    return token


def _certificate_names(call: Call) -> Sequence[str]:
    """Of the client's certificate, which TLS has verified; the alternative names first."""
    shown = call.auth_context()
    return [name.decode("utf-8", "replace") for key in _CERTIFICATE_NAMES for name in shown.get(key, ())]


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
