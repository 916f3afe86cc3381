"""The division of receipts among auditors: leases in a small database of the auditor's own. The log stays the truth."""
