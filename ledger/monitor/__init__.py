"""A monitor of a log: checks all that is new, keeps a summary, and says what is wrong. No network, no SQL."""
