"""The explorer: an auditor's read-only web pages over a ledger, whose proofs are checked in the browser."""
