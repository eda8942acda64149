"""The benchmark: this store, its rival and raw SQLite, measured in turns by one command (see run.py)."""
