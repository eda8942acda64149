"""Synchronising stores: each keeps, beside its rows, what it has sent and received of every session.

A document is a whole session, not a log of changes: shredding removes a file, nothing has to be compacted, and a lost or
repeated file does no harm. The price is that a changed session is written whole. A message is named by a digest of what it was
when it was first sent, so copies of a store, restored backups and the same history imported twice give the same names.

- `document.py`: what stores tell each other of a session and its forks, and how two such documents become one
- `tables.py`: where a store keeps its documents
- `collect.py`: the state of a session here, and the changes since, put into the documents
- `apply.py`: a merged document, put into the rows
- `replica.py`: all of it for an open store
"""
