"""Sessions in and out of a store: ingest, copies, synchronisation."""
