"""Errors of a build of a datastore."""

from __future__ import annotations

from services.generation.drafting.retrieval.errors import DatastoreError


class CorpusInvalid(DatastoreError):
    """A corpus cannot be read, or holds nothing; the message names the file and what to do."""


class BuildFailed(DatastoreError):
    """A datastore could not be written: no room, no permission, or something stands there already."""
