"""Storage engines: what one must do is in base.py; each has a package of its own."""
