"""The draft heads of this server: loaded at start, withdrawn when the ledger says so."""
