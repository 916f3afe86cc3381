"""Token ids in, token ids out: scheduling, sampling and the step loop. Knows no RPC, no SQL and no method's name."""
