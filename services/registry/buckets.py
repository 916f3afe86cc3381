"""Opens buckets by their URLs (through obstore), and puts the errors of one into a line."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from obstore.store import ObjectStore, from_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_OPTIONS: dict[str, dict[str, str]] = {
    "s3": {"endpoint": "endpoint", "region": "region"},
    "gs": {"endpoint": "base_url"},
    "az": {"endpoint": "endpoint", "account": "account_name"},
    "memory": {},
}
"""The options after the `?` of a URL of each scheme, and their names in obstore."""

# A request may carry 16 MiB over a slow line. The uploader repeats a failed one, so the retries of a
# store that is away end within the minute that callers wait.
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
"""The address at which machines in a cloud ask for credentials; obstore does so if the environment has none."""

_CODE = re.compile(r"<Code>([^<]+)</Code>\s*(?:<Message>([^<]*)</Message>)?")
"""An error in an answer of S3, GCS or Azure."""


def open_bucket(location: str) -> ObjectStore:
    """s3://bucket/prefix, gs://…, az://container/prefix or memory://. Credentials come from the environment, as the
    tools of each cloud read them. Asks nothing yet. Raises ValueError, obstore's BaseError.
    """
    url = urlsplit(location)
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


def public(location: str) -> str:
    """The URL without what might be a secret."""
    url: SplitResult = urlsplit(location)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def error_line(error: Exception) -> str:
    """A store's error in one line: the server's own code and message if it sent any."""
    text = str(error).split("\n\nDebug source", 1)[0]
    if _METADATA_SERVER in text:
        return "there are no credentials in the environment, and this machine has no role that brings any"
    code = _CODE.search(text)
    words = ": ".join(filter(None, code.groups())) if code else text.strip()
    return words.split("\n", 1)[0]
