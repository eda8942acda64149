"""A database from transcripts alone: `python -m hermes.store.rebuild SESSIONS_DIR NEW.db`."""

from __future__ import annotations

import sys
from pathlib import Path

from hermes.errors import HermesError, InvalidInput
from hermes.home import companion, has_key_file
from hermes.store import transcript_replay


def rebuild(folder: Path, target: Path) -> dict[str, int]:
    """Read every transcript of a folder into a new database; {"sessions", "messages", "skipped"}."""
    from hermes.store.engines.sqlite import SqliteEngine

    if target.exists():
        raise InvalidInput(f"{target} exists already; choose the name of a new file")
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder of transcripts")
    source = folder.absolute().parent / ("state.db" if folder.name == "sessions" else f"{folder.stem}.db")
    if has_key_file(source) and not has_key_file(target):  # from encrypted transcripts comes an encrypted database
        from hermes.store import encryption_keys

        encryption_keys.share(source, target)
    engine = SqliteEngine(target)
    try:
        counts = transcript_replay.replay(
            engine, folder, beside=folder.resolve() == companion(target, "sessions").resolve()
        )
        engine.catch_up()
    finally:
        engine.close()
    return counts


def main(arguments: list[str]) -> int:
    """0 done, 2 wrong usage."""
    if len(arguments) != 2:
        print("usage: python -m hermes.store.rebuild SESSIONS_DIR NEW.db", file=sys.stderr)
        return 2
    try:
        counts = rebuild(Path(arguments[0]), Path(arguments[1]))
    except HermesError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{counts['sessions']} sessions, {counts['messages']} messages, {counts['skipped']} files skipped")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
