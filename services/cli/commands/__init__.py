"""What typer sees: one function for each command, with its options; `services.cli.main` puts them together."""
