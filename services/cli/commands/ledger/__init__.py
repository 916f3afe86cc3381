"""`kolm ledger …`: check the ledger, erase and export from it, replace its keys."""
