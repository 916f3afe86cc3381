"""Retrieval: a datastore of token shards with suffix arrays, what it continues a context with, and how it is built."""
