"""kolm compared with its peers: one run, interleaved, medians of ratios. `python -m benchmarks --help`."""
