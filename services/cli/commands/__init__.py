"""Functions for typer: one for each command, with its options; `services.cli.main` puts them together."""
