"""What is halted, and who may resume it."""
