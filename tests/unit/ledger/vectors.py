"""Where the golden files are."""

from pathlib import Path

VECTORS = Path(__file__).parents[2] / "vectors"
