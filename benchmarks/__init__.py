"""kolm beside its peers: one run, interleaved, medians of ratios. `python -m benchmarks --help`."""
