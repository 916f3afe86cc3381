"""The Python client of kolm's services; its public names are those of the package `kolm`."""
