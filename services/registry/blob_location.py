"""The location of blobs: a folder, or the URL of a bucket, and the store behind it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_OPTIONS: dict[str, dict[str, str]] = {
    "s3": {"endpoint": "endpoint", "region": "region"},
    "gs": {"endpoint": "base_url"},
    "az": {"endpoint": "endpoint", "account": "account_name"},
    "memory": {},
}
"""The options after the `?` of a URL of each scheme, and their names in obstore."""

# A request may carry 16 MiB over a slow line. One that fails is made again by whoever uploads, so that a store that is
# away is soon said to be, within the minute that callers wait.
_CLIENT: ClientConfig = {
    "allow_http": True,  # an endpoint that is written http:// is meant
    "connect_timeout": "5s",
    "read_timeout": "30s",
    "timeout": "120s",
}
_RETRIES: RetryConfig = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2},
}

_METADATA_SERVER = "169.254.169.254"
"""Where machines in a cloud ask for credentials; obstore does so where the environment holds none."""

_CODE = re.compile(r"<Code>([^<]+)</Code>\s*(?:<Message>([^<]*)</Message>)?")
"""How S3, GCS and Azure say what is wrong."""


@dataclass(frozen=True, slots=True)
class BlobLocation:
    """An opened location. `folder` is where a local store keeps its objects, None for any other."""

    store: ObjectStore
    folder: Path | None = None

    @classmethod
    def open(cls, location: str) -> BlobLocation:
        """A folder's path, or s3://bucket/prefix, gs://…, az://container/prefix, file:///folder, memory://; a bucket
        is asked for its list, so that one that is not there or not ours is found at once. Credentials come from the
        environment, as the tools of each cloud read them. Raises ValueError, OSError.
        """
        if "://" not in location:
            return cls._local(Path(location))
        url = urlsplit(location)
        if url.scheme == "file":
            return cls._local(Path(unquote(url.path)))
        try:
            store = _bucket(url)
            next(iter(obstore.list(store, "sha256")), None)
        except (BaseError, ValueError) as error:
            raise ValueError(f"{_public(url)}: {said(error)}") from None
        return cls(store)

    @classmethod
    def _local(cls, folder: Path) -> BlobLocation:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(LocalStore(folder), folder)


def said(error: Exception) -> str:
    """A store's error in one line: the server's own code and message where it sent some."""
    text = str(error).split("\n\nDebug source", 1)[0]
    if _METADATA_SERVER in text:
        return "there are no credentials in the environment, and this machine has no role that brings any"
    code = _CODE.search(text)
    words = ": ".join(filter(None, code.groups())) if code else text.strip()
    return words.split("\n", 1)[0]


def _bucket(url: SplitResult) -> ObjectStore:
    """Raises ValueError, BaseError."""
    if url.scheme not in _OPTIONS:
        raise ValueError("expected a folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix")
    if "@" in url.netloc:
        raise ValueError("credentials belong into the environment, not into the URL")
    known, options = _OPTIONS[url.scheme], dict(parse_qsl(url.query, keep_blank_values=True))
    if unknown := sorted(options.keys() - known.keys()):
        raise ValueError(f"unknown option {unknown[0]!r}; known are {', '.join(known) or 'none'}")
    bare = url._replace(query="", fragment="").geturl()
    if url.scheme == "memory":
        return from_url(bare)
    config: Any = {known[name]: value for name, value in options.items()}
    return from_url(bare, config=config, client_options=_CLIENT, retry_config=_RETRIES)


def _public(url: SplitResult) -> str:
    """The URL without what might be a secret."""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"
