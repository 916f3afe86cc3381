"""Bringing heads to a registry under test."""

import hashlib
from collections.abc import Iterable

import obstore

from ledger.documents.draft_head import DraftHeadPublication
from ledger.documents.signed_document import sign_document
from ledger.keys.ed25519 import SigningKey
from services.client.registry import Head, RegistryClient
from services.registry.blobs import BlobStore
from tests.fakes.tiny_head import TinyHead
from tests.unit.ledger.builders import KEYS, at

NAME = "support-head"
PUBLISHER = KEYS["publisher"]


def send(registry: RegistryClient, blobs: Iterable[bytes]) -> None:
    """Upload bytes under their digests."""
    for data in blobs:
        registry.upload(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), 0, [data])


def envelope(
    head: TinyHead,
    name: str = NAME,
    key: SigningKey = KEYS["publisher"],
    issued: int = 400,
    base_cid: str | None = None,
) -> bytes:
    """A signed publication of the head."""
    manifest = head.manifest
    document = DraftHeadPublication(manifest.cid, name, base_cid or manifest.subject, "acme models", at(issued))
    return sign_document(document, key).to_bytes()


def publish(registry: RegistryClient, head: TinyHead, name: str = NAME) -> Head:
    """Upload and publish."""
    send(registry, head.blobs)
    return registry.publish(head.manifest.to_bytes(), envelope(head, name))[0]


def stored(store: BlobStore) -> dict[str, int]:
    """The size of each blob that a store holds, by digest."""
    found = (each for page in obstore.list(store.store, "sha256") for each in page)
    return {f"sha256:{each['path'].rpartition('/')[2]}": each["size"] for each in found}
