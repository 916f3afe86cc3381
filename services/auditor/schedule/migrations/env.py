"""The entry point of alembic: runs the steps, in the transaction that `database.migrate` hands over."""

from __future__ import annotations

from alembic import context

from services.auditor.schedule.tables import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
