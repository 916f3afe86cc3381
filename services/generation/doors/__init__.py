"""Other engines' gRPC services on this server's port: their messages in, its own calls, their messages out."""
