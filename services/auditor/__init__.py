"""The auditor: samples receipts, computes them again on an engine of its own, and appends the verdicts."""
