"""`python -m services.client.health HOST:PORT [SERVICE]`: exit 0 if the server says SERVING, else 5.

For health checks of containers and scripts; SERVICE is a full service name, by default the whole server.
"""

from __future__ import annotations

import sys
from contextlib import closing

from services.client.connection.channel import Connection
from services.client.errors import KolmError

EXIT_OK, EXIT_USAGE, EXIT_UNAVAILABLE = 0, 2, 5


def main(arguments: list[str]) -> int:
    """Ask once and wait at most five seconds; if it does not serve, print why on stderr."""
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return EXIT_USAGE
    target, service = arguments[0], (*arguments[1:], "")[0]
    with closing(Connection(target)) as connection:
        try:
            if connection.serving(service):
                return EXIT_OK
            print(f"{target} does not serve {service}".rstrip(), file=sys.stderr)
        except KolmError as error:
            print(f"{target}: {error}", file=sys.stderr)
    return EXIT_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
