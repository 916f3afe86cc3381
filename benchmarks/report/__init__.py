"""`python -m benchmarks report`: the pages' tables, rendered from the result files."""
