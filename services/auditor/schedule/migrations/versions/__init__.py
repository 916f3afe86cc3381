"""The steps that made the tables of the schedule what they are."""
