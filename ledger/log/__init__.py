"""The log at work: admission, the one writer, recovery, reading. What it asks of a store."""
