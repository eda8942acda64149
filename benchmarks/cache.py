"""What is built once and used by many runs: the rival's environment and the loaded store of each contestant.

A store is built in a directory of another name and renamed when it is whole, so a killed run leaves nothing
half. Ours carries a stamp of the code that wrote it and is built anew when that code has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import corpus
from benchmarks.contestants import RIVAL_REQUIREMENT, ROOT, Contestant, Result
from benchmarks.data import Data
from benchmarks.disk import Disk

LOAD_TIMEOUT = {"XS": 600.0, "S": 7200.0, "many": 3600.0, "L": 6 * 3600.0}


class Cache:
    """A directory that git ignores, with everything that takes long to build."""

    def __init__(self, directory: Path, say: Callable[[str], None], keep_stores: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ".gitignore").write_text("*\n")
        self.directory, self._say, self._keep = directory, say, keep_stores
        self.work = directory / "work" / str(os.getpid())
        self.home = self.work / "home"
        self.home.mkdir(parents=True)
        self.disk = Disk(self.work)
        self._checked: set[Path] = set()

    def rival_python(self, given: str | None) -> str:
        """The interpreter the rival is installed in: the given one, else an environment made here."""
        if given:
            return given
        python = self.directory / "rival" / "bin" / "python"
        if not python.exists():
            self._say(f"installing {RIVAL_REQUIREMENT} in an environment of its own")
            subprocess.run([sys.executable, "-m", "venv", str(self.directory / "rival")], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", RIVAL_REQUIREMENT], check=True)
        return str(python)

    def store(self, contestant: Contestant, size: str, data: Data) -> Path:
        """The contestant's store with the corpus of that size (or "many") in it, built if missing.

        It is for reading only: other runs use it too.
        """
        directory = self.directory / "stores" / f"{contestant.key}-{size}"
        source = _source(size, data)
        stamp = _stamp(source, contestant.key == "ours")
        if directory not in self._checked and not self._usable(directory, stamp):
            self._say(f"loading the store {directory.name}; this is done once")
            self._build(contestant, "load", directory, {**source, "durability": "normal"}, size, stamp)
        self._checked.add(directory)  # once a run: an edit meanwhile must not change what is measured halfway
        return directory / "state.db"

    def has_store(self, contestant: Contestant, size: str) -> bool:
        return (self.directory / "stores" / f"{contestant.key}-{size}" / "stamp.json").exists()

    def load_figures(self, contestant: Contestant, size: str) -> dict[str, Any]:
        """What building the store took (messages, seconds, latencies)."""
        stamp = self.directory / "stores" / f"{contestant.key}-{size}" / "stamp.json"
        return dict(json.loads(stamp.read_text())["load"])

    def version6(self, contestant: Contestant, size: str, data: Data) -> Path:
        """A file of schema version 6 with the corpus in it, written with plain SQL."""
        directory = self.directory / "stores" / f"version6-{size}"
        source = _source(size, data)
        stamp = _stamp(source, with_code=False)
        if not self._usable(directory, stamp):
            self._say(f"writing a version-6 file of size {size}")
            self._build(contestant, "version6", directory, source, size, stamp)
        return directory / "state.db"

    def copy(self, store: Path, name: str) -> Path:
        """A copy to write to, with everything beside it, flushed so that the copying is not measured."""
        target = self.work / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(store.parent, target, ignore=shutil.ignore_patterns("stamp.json"))
        os.sync()
        return target / store.name

    def drop(self, store: Path) -> None:
        shutil.rmtree(store.parent, ignore_errors=True)

    def clean(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)

    def _usable(self, directory: Path, stamp: str) -> bool:
        file = directory / "stamp.json"
        return file.exists() and (self._keep or json.loads(file.read_text())["stamp"] == stamp)

    def _build(self, who: Contestant, job: str, directory: Path, config: dict[str, Any], size: str, stamp: str) -> None:
        unfinished = directory.with_name(directory.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        config = {**config, "store": str(unfinished / "state.db")}
        answer: Result = who.run(job, config, home=self.home, timeout=LOAD_TIMEOUT[size])
        if "error" in answer:
            raise BuildError(f"{directory.name} could not be built: {answer['error']}")
        (unfinished / "stamp.json").write_text(json.dumps({"stamp": stamp, "load": answer}))
        shutil.rmtree(directory, ignore_errors=True)
        unfinished.rename(directory)


class BuildError(Exception):
    """A store that a row needs could not be built; the row is printed as failed."""


def _source(size: str, data: Data) -> dict[str, Any]:
    if size == "L":  # made on the way: ten times S does not fit in memory and need not lie on disk
        return {"pool": str(data.pool()), "lo": 0, "hi": corpus.SIZES["L"]}
    return {"corpus": str(data.many() if size == "many" else data.sessions(size))}


def _stamp(source: dict[str, Any], with_code: bool) -> str:
    """What a store was made from: the corpus, and for ours the code that decides what the file looks like."""
    bytes_of_corpus = os.stat(source.get("corpus") or source["pool"]).st_size
    if not with_code:
        return f"{bytes_of_corpus}"
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "hermes" / "store").rglob("*.py")):
        digest.update(path.read_bytes())
    return f"{bytes_of_corpus} {digest.hexdigest()[:16]}"
