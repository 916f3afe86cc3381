"""A piece of the log that can be carried away and judged offline."""
