"""What every call to the front goes through: who asks, how much runs at once, the answer or the error."""
