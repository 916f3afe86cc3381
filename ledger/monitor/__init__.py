"""A monitor of a log: it checks new entries, keeps a summary, and reports findings. No network, no SQL."""
