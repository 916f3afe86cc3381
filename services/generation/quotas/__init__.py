"""Quotas of tenants on a server: requests in flight, tokens a minute, bytes of content in the ledger."""
