"""The manifests of the heads that a bundle's receipts name: from the registry into the bundle."""

from __future__ import annotations

from ledger.bundle.draft_heads import draft_head_file, draft_heads_named
from ledger.bundle.folder import BundleFolder
from ledger.bundle.tar_archive import add_file
from ledger.errors import LedgerError
from services.client.errors import KolmError, NotFound
from services.client.registry import RegistryClient


def add_manifests(bundle: BundleFolder, registry: str) -> tuple[str, ...]:
    """Put them in, as far as the registry has them; returns, in words, what is not there and why.

    A manifest is what its digest says or is left out, so the registry need not be trusted. Raises FormatError for a
    bundle that is not in form, StoreError.
    """
    heads = draft_heads_named(bundle)
    if not heads:
        return ()
    with RegistryClient.connect(registry) as client:
        return tuple(why for head in heads if (why := _add(bundle, head, client, registry)) is not None)


def _add(bundle: BundleFolder, head: str, client: RegistryClient, registry: str) -> str | None:
    """Why the manifest of a head is not in the bundle; None where it is."""
    name = f"the manifest of {head}"
    try:
        file = draft_head_file(head, client.head(head).manifest)
    except NotFound:
        return f"{name}: the registry at {registry} does not know this head"
    except KolmError as error:
        return f"{name}: the registry at {registry} does not answer ({error.message}); name it with --registry"
    except LedgerError as error:
        return f"{name}: the registry at {registry} gave something else: {error}"
    add_file(bundle.folder, file)
    return None
