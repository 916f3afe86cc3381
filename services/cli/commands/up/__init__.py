"""`kolm up`: all services on this machine."""
