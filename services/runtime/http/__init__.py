"""HTTP servers and calls: life, metrics, spans, headers, files."""
