"""The history of the ledger's tables, for SQLite and PostgreSQL alike (alembic)."""
