"""An X.509 authority for development and for small deployments, and the certificates that it gives out (RFC 5280)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CLOCKS_DIFFER = timedelta(minutes=5)
_AUTHORITY_DAYS = 3650


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
        """A new one, for ten years; it may sign certificates of servers and callers, and no further authorities."""
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
        """Raises ValueError for what is no certificate with a P-256 key."""
        key = serialization.load_pem_private_key(pair.key, None)
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError("the key of the authority does not belong to its certificate")
        return cls(certificate, key)

    def pair(self) -> Pair:
        return _pair(self.certificate, self.key)

    def issue(self, name: str, hosts: Sequence[str], now: datetime, days: int) -> Pair:
        """For a server at `hosts` (DNS names, addresses) or, without any, for a caller: both are called `name`."""
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
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
