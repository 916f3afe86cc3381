"""The ledger under load: durable appends, proofs and verification, as the log grows."""
