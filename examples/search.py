"""Search the record from a script: one line for each hit, with the match marked.

python examples/search.py 'parser NOT legacy'
python examples/search.py '"port 5432" OR postgres' telegram
"""

from __future__ import annotations

import sys

from hermes_state import SessionDB


def main() -> None:
    """Print the ten best hits for the query in the first argument, of the source in the second (or of all)."""
    query, sources = sys.argv[1], sys.argv[2:] or None
    with SessionDB(read_only=True) as db:
        for hit in db.search_messages(query, source_filter=sources, limit=10):
            session = db.get_session(hit["session_id"]) or {}
            title = session.get("title") or hit["session_id"]
            print(f"{title} · {hit['role']}: {hit['snippet']}")


if __name__ == "__main__":
    main()
