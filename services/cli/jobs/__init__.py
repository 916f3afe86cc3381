"""The work of the commands, without typer."""
