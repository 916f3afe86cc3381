"""`python -m services.cli`: the command `kolm`, for when that is not on the path."""

from __future__ import annotations

from services.cli.main import app

if __name__ == "__main__":
    app(prog_name="kolm")
