"""The ledger's store in SQL. The one part of `ledger` that imports SQLAlchemy."""
