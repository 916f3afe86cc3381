"""The services of this machine as child processes."""
