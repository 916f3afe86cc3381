"""A pass as a program: packed weights, buffers, records of operations, and the team that runs them."""
