"""Settings of servers, their flags and their help page."""
