"""The client of a ledger server, and what of its answers is proven."""
