"""`kolm monitor`: following a log."""
