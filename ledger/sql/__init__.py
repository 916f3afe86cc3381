"""The ledger's store in SQL; no other part of `ledger` imports SQLAlchemy."""
