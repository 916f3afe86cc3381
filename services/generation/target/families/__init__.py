"""The families of models that can be served, one file each, with the differences of their layers."""
