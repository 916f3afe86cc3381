"""Words of the command line as values, and the files that they name."""
