"""The command `python -m hermes.store.check FILE`: check a store, and with `--repair` repair it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hermes.errors import HermesError, StoreCorrupt
from hermes.home import companion, settled
from hermes.store.db import SessionDB
from hermes.store.repair import salvage

if TYPE_CHECKING:
    from hermes.store.rows import Finding

_USAGE = "FILE [--repair [--from-transcripts | --from-database]]"
_USES: tuple[set[str], ...] = (set(), {"--repair"}, {"--repair", "--from-transcripts"}, {"--repair", "--from-database"})


def main(arguments: list[str]) -> int:
    """`python -m hermes.store.check FILE [--repair …]`: 0 sound, 1 problems found (or remaining), 2 wrong usage."""
    files = [argument for argument in arguments if not argument.startswith("-")]
    options = {argument for argument in arguments if argument.startswith("-")}
    if len(files) != 1 or options not in _USES:
        print(f"usage: python -m hermes.store.check {_USAGE}", file=sys.stderr)
        return 2
    path, repairing = settled(files[0]), "--repair" in options
    side = {"from_transcripts": "--from-transcripts" in options, "from_database": "--from-database" in options}
    if not path.exists():
        print(f"{path} does not exist; give the path of a state.db", file=sys.stderr)
        return 2
    try:
        with SessionDB(db_path=path) as db:
            found = db.check()
            _print(found)
            if not repairing or (db.read_only and not found):
                return 1 if found else 0
            for step in db.repair(rebuild_index=True, **side):
                print(f"repaired: {step}")
            left = db.check()
    except StoreCorrupt as error:
        print(f"corruption: {error}")
        if not repairing or path.is_dir():
            return 1 if not path.is_dir() else 2
        for step in salvage(path, companion(path, "sessions")):
            print(f"repaired: {step}")
        with SessionDB(db_path=path) as db:
            for step in db.repair(**side):
                print(f"repaired: {step}")
            left = db.check()
    except HermesError as error:
        print(error, file=sys.stderr)
        return 2
    _print(left)
    return 1 if left else 0


def _print(found: list[Finding]) -> None:
    for finding in found[:50]:
        print(f"{finding['kind']}: {finding['where']}: {finding['detail']}")
    if len(found) > 50:
        print(f"… and {len(found) - 50} more")
    if not found:
        print("sound")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
