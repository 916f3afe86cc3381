"""What a hostile caller can do to a server's memory."""
