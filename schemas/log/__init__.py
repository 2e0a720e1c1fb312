"""How every room reads and writes topics: the protocol, the loops that follow it, the ledger of commits."""
