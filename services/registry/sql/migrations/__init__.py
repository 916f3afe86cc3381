"""Alembic's scripts for the catalogue."""
