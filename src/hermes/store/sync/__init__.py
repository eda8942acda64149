"""Synchronising stores: each keeps, beside its rows, what it has sent and received of every session.

- `document.py`: what stores tell each other of a session and its forks, and how two such documents become one
- `tables.py`: where a store keeps its documents
- `snapshots.py`: how a session stands here
- `documenting.py`: what was changed here since, put into the documents
- `applying.py`: a merged document, put into the rows
- `replica.py`: all of it for an open store
"""
