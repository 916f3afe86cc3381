"""What the commands do, without typer."""
