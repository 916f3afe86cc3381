"""Who examines which receipt: leases in a small database of the auditor's own. The log stays the truth."""
