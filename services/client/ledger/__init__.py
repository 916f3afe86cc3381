"""The client of a ledger server, and the proofs of its answers."""
