"""A service that ends with its parent: `python -m tests.e2e.bound_service PARENT MODULE FLAGS`."""

import sys

from services.cli.up.fork_server import die_with_parent, run_module

if __name__ == "__main__":
    parent, service, *flags = sys.argv[1:]
    die_with_parent(int(parent))
    run_module(service, flags)
