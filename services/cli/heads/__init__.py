"""Draft heads: trained, measured, published, fetched."""
