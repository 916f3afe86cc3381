"""The witness: an HTTP server (C2SP tlog-witness) that cosigns logs which only grew."""
