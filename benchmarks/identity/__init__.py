"""Whether a server's output with speculation is that of its plain decoding."""
