"""Receipts, canonical bytes, keys, the Merkle tree, signed checkpoints, the sequencer and offline verification.
Imports: the standard library, msgspec, rfc8785, cryptography, PyNaCl; cbor2 and python-pkcs11 where they are needed;
SQLAlchemy under `ledger.sql` alone. Nothing here knows gRPC, torch or a service. Import from the modules;
`README.md` beside this file is the map.
"""
