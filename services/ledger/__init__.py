"""The ledger service: `kolm.ledger.v1.LedgerService` over the `ledger` package."""
