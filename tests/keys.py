"""Signing keys that are the same in every run."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.keys.ed25519 import SigningKey


def seeded_key(seed: bytes, role: str) -> SigningKey:
    """The key of a 32-byte RFC 8032 seed."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(seed), role)
