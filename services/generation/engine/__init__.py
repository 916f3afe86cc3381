"""Token ids in, token ids out: scheduling, sampling and the one step loop. Knows no RPC, no SQL and no method by
name.
"""
