"""Who calls, and what they may do: principals, their credentials, and the one table of what each RPC needs."""
