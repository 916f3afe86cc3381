"""Receipts, canonical bytes, keys, the Merkle tree, signed checkpoints, the sequencer and offline verification.
Imports: the standard library, cryptography, rfc8785; SQLAlchemy under `ledger.sql` alone. Nothing here knows gRPC,
torch or a service. Import from the modules, each of which holds one noun; `README.md` beside this file is the map.
"""
