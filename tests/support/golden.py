"""Golden screens: what the commands print, kept in files and looked at by people.

`python -m tests.support.golden --write` prints them anew into tests/cli/golden/; look at the difference before you keep
it. The tests only compare.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support import seeds
from tests.support.program import run

FOLDER = Path(__file__).resolve().parents[1] / "cli" / "golden"


@dataclass(frozen=True, slots=True)
class Golden:
    """A screen: a seed of tests.support.seeds, and the command."""

    name: str
    seed: str
    words: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file of this golden output."""
        return FOLDER / f"{self.name}.txt"

    def printed(self, width: int = 80) -> str:
        """The output of the command now."""
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "home"
            getattr(seeds, self.seed)(home)
            done = run(*self.words, home=home, width=width, env={"HERMES_NOW": str(seeds.NOW)})
        assert done.status == 0, done.err
        return done.out


_SCREENS = {
    "list-titles": ("people", "list"),
    "list-untitled": ("untitled", "list"),
    "list-empty": ("nobody", "list"),
    "list-lineage": ("lineage", "list"),
    "stats": ("people", "stats"),
    "stats-empty": ("nobody", "stats"),
    "show": ("people", "show", "Parser rewrite"),
    "show-full": ("people", "show", "--full", "Parser rewrite"),
    "show-emoji": ("people", "show", "20250614_110000_e0e0e0"),
    "show-rtl": ("people", "show", "20250613_180000_fa111e"),
    "show-untitled": ("people", "show", "20250615_100000_beef01"),
    "show-lineage": ("lineage", "show", "Store design #2"),
    "search": ("people", "search", "parser OR photos OR flag"),
}
SCREENS = [Golden(name, seed, ("sessions", *words)) for name, (seed, *words) in _SCREENS.items()]


def main(arguments: list[str]) -> int:
    """Write the screens anew."""
    if arguments != ["--write"]:
        print("usage: python -m tests.support.golden --write", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    for screen in SCREENS:
        screen.path.write_text(screen.printed())
    print(f"{len(SCREENS)} screens in {FOLDER}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
