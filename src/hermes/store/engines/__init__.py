"""Storage engines: base.py declares the interface; each engine has its own package."""
