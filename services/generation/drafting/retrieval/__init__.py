"""Retrieval: a datastore of token shards with suffix arrays, and searches for continuations of a context."""
