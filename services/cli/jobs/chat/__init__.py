"""A conversation: its memory, a turn of it, and how it is kept."""
