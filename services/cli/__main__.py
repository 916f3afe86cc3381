"""`python -m services.cli` is `kolm`, for where the command is not on the path."""

from __future__ import annotations

from services.cli.main import app

if __name__ == "__main__":
    app(prog_name="kolm")
