"""The `kolm` command: a client like any other."""
