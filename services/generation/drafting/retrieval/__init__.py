"""Retrieval: a datastore of token shards with suffix arrays, and what of it continues a context."""
