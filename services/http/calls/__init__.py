"""The steps of every call to the front: the caller's name, the limit of running calls, the answer or the error."""
