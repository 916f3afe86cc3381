"""The services of one machine, run together."""
