"""The catalogue in SQL: SQLite in a file, or PostgreSQL."""
