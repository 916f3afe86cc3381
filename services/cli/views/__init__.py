"""What a person or a program reads: tables, text and JSON."""
