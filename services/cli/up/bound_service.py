"""A service that ends with its parent, in a new interpreter: `python -m services.cli.up.bound_service PARENT MODULE
FLAGS`, where there can be no fork server.
"""

from __future__ import annotations

import sys

from services.cli.up.fork_server import die_with_parent, run_module

if __name__ == "__main__":
    parent, service, *flags = sys.argv[1:]
    die_with_parent(int(parent))
    run_module(service, flags)
