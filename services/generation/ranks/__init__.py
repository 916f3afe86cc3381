"""The processes of a model that is too large for one: rank 0 serves, the others follow it."""
