"""What is found out about a loaded target before it serves: that its bits hold, and what its passes cost."""
