"""Make the pictures of docs/pictures: `python -m tools.pictures [FOLDER]`, or `make pictures`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tools.pictures import page, scene, terminal

ROOT = Path(__file__).resolve().parents[2]


def main(words: list[str]) -> None:
    """Run the program twice, in a terminal and in a browser, and write what was to be seen."""
    folder = Path(words[0]) if words else ROOT / "docs" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures-") as root:
        with scene.home(Path(root) / "ann") as (repository, variables):
            (folder / "terminal.svg").write_text(terminal.recorded(repository, variables), encoding="utf-8")
        with scene.home(Path(root) / "bob", imported=True) as (_, variables):
            page.photographed(folder, variables)
    for file in sorted(folder.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main(sys.argv[1:])
