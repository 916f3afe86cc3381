"""`kolm init`: keys and certificates for TLS between services."""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from typer import Argument, Option

from ledger.durable_file import move_durably, write_durably
from services.cli.frame import options
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.output import answer
from services.cli.frame.values import expect_new, expect_utf8
from services.cli.up.local_services import SERVICE_ROLES

if TYPE_CHECKING:
    from services.runtime.credentials import Credential


_MOST_DAYS = 3650


CALLER = "client"
PORTS = {"generation": 50051, "ledger": 50052, "auditor": 50053, "registry": 50054, "explorer": 50056, "http": 50057}
_BROWSED = ("explorer", "http")
"""Their callers are browsers and clients of OpenAI's API, without a certificate."""
_CALLS = {
    "generation": ("ledger", "registry"),
    "auditor": ("ledger",),
    "registry": ("ledger",),
    "explorer": ("ledger",),
    "http": ("generation",),
}
_SERVED = (*PORTS, "witness")
_HERE = ("localhost", "127.0.0.1", "::1")

_CLOCKS_DIFFER = timedelta(minutes=5)
_AUTHORITY_DAYS = 3650

_UNUSED = (
    "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only",
)  # fmt: skip


def init(
    folder: Annotated[
        Path, Argument(metavar="FOLDER", help="Folder to make, with mode 0700; refused if it has files.")
    ],
    host: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="A name or an address of the services; may be repeated. --renew keeps the old ones without it.",
        ),
    ] = None,
    days: Annotated[int, Option(min=1, max=_MOST_DAYS, help="Days for which certificates are valid.")] = 365,
    renew: Annotated[
        bool, Option("--renew", help="Replace the certificates of a FOLDER; restart services that call others.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Write a development authority, a certificate for each service and for you, and settings with mutual TLS."""
    made = InitialFolder(folder)
    (made.renew if renew else made.create)([_checked_host(each) for each in host or ()], datetime.now(UTC), days)
    document = {"folder": str(folder), "settings": str(made.settings), "environment": str(made.environment)}
    written = (
        f"wrote {folder}\n\n"
        f"  kolm serve ledger --config {made.settings}      # and the other services\n"
        f"  . {made.environment}      # for your own commands\n\n"
        f"{made.key('ca')} signs certificates that every service trusts: keep it away from them."
    )
    answer(json, document, lambda _: f"renewed the certificates in {folder / 'tls'}" if renew else written)


@dataclass(frozen=True, slots=True)
class InitialFolder:
    """The paths in the folder. Private keys have mode 0600, folders 0700."""

    path: Path

    @property
    def settings(self) -> Path:
        """The file for `kolm serve SERVICE --config`."""
        return self.path / "kolm.toml"

    @property
    def environment(self) -> Path:
        """Variables of a caller, for a shell to source."""
        return self.path / "client.env"

    @property
    def principals(self) -> Path:
        """The principals, by their certificates' names."""
        return self.path / "principals.json"

    @property
    def authority(self) -> Path:
        return self.path / "tls" / "ca.pem"

    def certificate(self, name: str) -> Path:
        return self.path / "tls" / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.path / "tls" / f"{name}.key"

    def hosts(self, service: str) -> list[str]:
        """The names in the service's certificate; none without a certificate. Raises UsageError for a damaged one."""
        path = self.certificate(service)
        if not path.exists():
            return []
        try:
            extensions = x509.load_pem_x509_certificate(path.read_bytes()).extensions
            return [str(each.value) for each in extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
        except (ValueError, x509.ExtensionNotFound) as error:
            raise UsageError(f"{path}: {error}", "name the services with --host") from None

    def create(self, hosts: Sequence[str], now: datetime, days: int) -> None:
        """Write everything, or nothing. Raises UsageError if the folder has files, Failed."""
        from services.runtime.credentials import write_principals

        expect_new("FOLDER", self.path, "--renew replaces certificates")
        expect_utf8("FOLDER", self.path.resolve())  # TOML has no other names
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            draft.mkdir(mode=0o700, parents=True)
            (draft / "tls").mkdir(mode=0o700)
            authority = Authority.create(now)
            _write_pair(InitialFolder(draft), "ca", authority.pair())
            _issue_all(InitialFolder(draft), authority, hosts, now, days)
            write_durably(draft / self.settings.name, self._settings().encode(), 0o600)
            write_durably(draft / self.environment.name, self._environment().encode(), 0o600)
            write_principals(draft / self.principals.name, _principals(now))
            move_durably(draft, self.path)  # takes the place of an empty folder as well
        except OSError as error:
            raise Failed(f"cannot write {self.path}: {error.strerror}") from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def renew(self, hosts: Sequence[str], now: datetime, days: int) -> None:
        """Write new certificates by the folder's authority, for `hosts` or else the names that each has now. Running
        servers load them at their next handshake; their own calls have them after a restart. Raises UsageError, Failed.
        """
        try:
            pair = Pair(self.authority.read_bytes(), self.key("ca").read_bytes())
            _issue_all(self, Authority.load(pair), hosts, now, days)
        except FileNotFoundError as error:
            raise UsageError(f"no {error.filename}: there is nothing to renew") from None
        except ValueError as error:
            raise UsageError(f"{self.authority}, {self.key('ca')}: {error}") from None
        except OSError as error:
            raise Failed(f"cannot write {self.path}: {error.strerror}") from None

    def _settings(self) -> str:
        return "\n".join(line for service in PORTS for line in (*self._table(service), ""))

    def _table(self, service: str) -> Iterator[str]:
        root = self.path.resolve()
        state = "state_dir" if service == "generation" else "data_dir"
        yield f"[{service}]"
        yield f'listen = "127.0.0.1:{PORTS[service]}"'
        if service not in _BROWSED:
            yield f"{state} = {_toml(root / service)}"
        if service in ("generation", "auditor"):
            yield 'model = "smollm2"'
        yield f"trusted_keys = {_toml(root / 'trusted')}"
        if service in ("generation", "ledger", "registry"):
            yield f"principals = {_toml(root / self.principals.name)}"
        yield from (f'{called} = "https://localhost:{PORTS[called]}"' for called in _CALLS.get(service, ()))
        for name, path in (
            ("tls_cert", self.certificate(service)),
            ("tls_key", self.key(service)),
            *(() if service in _BROWSED else (("tls_client_ca", self.authority),)),
            *((("tls_ca", self.authority),) if service in _CALLS else ()),
        ):
            yield f"{name} = {_toml(path.resolve())}"

    def _environment(self) -> str:
        files = (("CA", self.authority), ("CERT", self.certificate(CALLER)), ("KEY", self.key(CALLER)))
        return "".join(f"export KOLM_TLS_{name}={shlex.quote(str(path.resolve()))}\n" for name, path in files)


def _principals(now: datetime) -> list[Credential]:
    """Each service by its certificate, and the caller with every role. The front has none, because its roles would
    count for its callers without a token.
    """
    from services.runtime.credentials import ROLES, Credential

    called = (name for name in PORTS if name in SERVICE_ROLES and name != "http")
    roles = {name: SERVICE_ROLES[name] for name in called} | {CALLER: ROLES}
    return [
        Credential(name=name, tenant=None, roles=each, certificate=name, created_at=now) for name, each in roles.items()
    ]


def _toml(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False).replace("\x7f", "\\u007f")


def _checked_host(host: str) -> str:
    """A name in lower case, or an address. Raises UsageError for others, and for the caller's certificate's name."""
    from services.runtime.listening import host_name

    wildcard = "*." if host.startswith("*.") else ""
    try:
        name = str(ipaddress.ip_address(host))
    except ValueError:
        try:
            name = wildcard + host_name(host.removeprefix("*."))
        except ValueError as error:
            raise UsageError(f"--host: {error}") from None
    if name == CALLER:
        raise UsageError(f"--host: {CALLER} is the name of your own certificate", "call the machine by another name")
    return name


def _issue_all(folder: InitialFolder, authority: Authority, hosts: Sequence[str], now: datetime, days: int) -> None:
    """Names of certificates are principals, so no certificate gets the name of another service or of the caller."""
    for service in _SERVED:
        others = {*_SERVED, CALLER} - {service}
        names = (*_HERE, *(each for each in hosts or folder.hosts(service) if each not in others))
        _write_pair(folder, service, authority.issue(service, names, now, days))
    _write_pair(folder, CALLER, authority.issue(CALLER, (), now, days))


def _write_pair(folder: InitialFolder, name: str, pair: Pair) -> None:
    """The key first: a service that reads in between finds a mismatched pair, and keeps its own."""
    write_durably(folder.key(name), pair.key, 0o600)
    write_durably(folder.certificate(name), pair.certificate, 0o644)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, unencrypted, as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates. Keys are P-256, which browsers and every TLS library take."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, now: datetime) -> Self:
        """A new authority, for ten years; it may sign certificates of servers and callers, not of other authorities."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("kolm development authority")
        builder = (
            _builder(name, key.public_key(), now, _AUTHORITY_DAYS)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, pair: Pair) -> Self:
        """Raises ValueError for anything but a certificate with a P-256 key."""
        key = serialization.load_pem_private_key(pair.key, None)
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError("the key of the authority does not belong to its certificate")
        return cls(certificate, key)

    def pair(self) -> Pair:
        return _pair(self.certificate, self.key)

    def issue(self, name: str, hosts: Sequence[str], now: datetime, days: int) -> Pair:
        """A certificate called `name`, for a server at `hosts` (DNS names, addresses) or, without any, for a caller."""
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        names = [_general_name(each) for each in dict.fromkeys((name, *hosts))]
        builder = (
            _builder(_name(name), key.public_key(), now, days)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        return _pair(builder.sign(self.key, hashes.SHA256()), key)


def _builder(subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Pair(certificate.public_bytes(pem), key.private_bytes(pem, pkcs8, serialization.NoEncryption()))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **dict.fromkeys(_UNUSED, False)
    )
