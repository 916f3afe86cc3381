"""The auditor: samples receipts, has them decoded again with speculation off, and appends the verdicts."""
