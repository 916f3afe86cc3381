"""The head while it learns: its module, its loss, its steps."""
