"""What goes to stdout and stderr."""
