"""Views for people and for programs: tables, text and JSON."""
