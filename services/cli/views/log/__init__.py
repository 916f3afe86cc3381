"""The log: checkpoints, checks, halts, audits, policies."""
