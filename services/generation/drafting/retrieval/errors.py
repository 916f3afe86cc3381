"""What can be wrong with a datastore or with what it is to be made of."""


class DatastoreError(Exception):
    """Root of the family."""


class StoreInvalid(DatastoreError):
    """A datastore's folder is incomplete, changed or not one; the message names the file."""


class StoreMismatch(DatastoreError):
    """A datastore was built with another tokenizer, or its passages were embedded with another model."""


class CorpusInvalid(DatastoreError):
    """A corpus cannot be read, or holds nothing; the message names the file and what to do."""


class BuildFailed(DatastoreError):
    """A datastore could not be written: no room, no permission, or something stands there already."""


class EmbedderInvalid(DatastoreError):
    """A sentence-transformers directory cannot be used; the message names the file and what to do."""
