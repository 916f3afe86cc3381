"""The witness: an HTTP server of its own (C2SP tlog-witness) that cosigns logs which only ever grew."""
