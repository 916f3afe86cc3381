"""The Merkle tree over the entries: leaves, proofs, tiles, checkpoints."""
