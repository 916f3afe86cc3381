"""The error family of datastores and of embedders of their passages."""


class DatastoreError(Exception):
    """Root of the family; `services.datastores` adds the errors of a build."""


class StoreInvalid(DatastoreError):
    """A datastore's folder is incomplete, changed or not one; the message names the file."""


class StoreMismatch(DatastoreError):
    """A datastore was built with another tokenizer, or its passages were embedded with another model."""


class EmbedderInvalid(DatastoreError):
    """A sentence-transformers directory cannot be used; the message names the file and what to do."""
