"""The servers: doors for other programs, over HTTP."""
