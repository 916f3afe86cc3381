"""Draft heads: converted, trained, measured, published, fetched."""
