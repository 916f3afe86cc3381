"""The connection under every client: channel, endpoint, TLS, token, spans."""
