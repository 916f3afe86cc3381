"""The client of a registry of draft heads, and heads in folders."""
