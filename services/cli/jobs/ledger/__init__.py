"""The ledger: verified, exported, erased from, its keys replaced."""
