"""What sequences that begin alike have from each other."""
