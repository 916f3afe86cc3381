"""Members of JSON bodies that several APIs share."""
