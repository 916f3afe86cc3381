"""What each tenant may take of a server: requests in flight, tokens a minute, bytes of content in the ledger."""
