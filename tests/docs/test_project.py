"""The project's own pages name what exists: files, make targets, pages of the site, one version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import hermes
from tests.support import program

ROOT = Path(__file__).parents[2]
# A folder that the layout names by its place below src/hermes.
_BASES = (ROOT, ROOT / "src" / "hermes", ROOT / "src" / "hermes" / "store", ROOT / "src")


def test_every_path_that_contributing_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:[\w.]+/)+[\w.]*|\w+\.(?:py|md|toml))`", text) + re.findall(r"\]\(([^)]+)\)", text)
    assert len(named) > 12
    missing = [name for name in named if not any((base / name).exists() for base in _BASES)]
    assert missing == []


def test_every_make_target_that_contributing_names_exists() -> None:
    rules = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"make ([\w-]+)", (ROOT / "CONTRIBUTING.md").read_text()))
    assert {name for name in named if not re.search(rf"^{name}:", rules, re.MULTILINE)} == set()


def test_every_page_of_the_guide_is_in_the_site_and_in_its_index() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    index = (ROOT / "docs" / "index.md").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    listed = re.findall(r"[\w/-]+\.md", str(yaml.safe_load(site)["nav"]))
    assert sorted(listed) == sorted(pages)
    assert [page for page in pages if page != "index.md" and f"({page})" not in index] == []


def test_the_index_has_the_reading_order_of_the_site() -> None:
    menu = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    linked = re.findall(r"\(([\w/-]+\.md)\)", (ROOT / "docs/index.md").read_text())
    assert list(dict.fromkeys(linked)) == menu[1:]  # the first is the index itself


def test_the_layout_in_contributing_is_that_of_the_import_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    layers = [
        name
        for layer in contract
        for name in re.findall(r"hermes\.(\w+)", layer)
        if (ROOT / "src/hermes" / name).is_dir()
    ]
    listed = re.findall(r"^src/hermes/(\w+)/ ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert listed == layers


def test_the_version_is_written_once(tmp_path: Path) -> None:
    assert "version" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"]
    assert program.run("--version", home=tmp_path).out == f"hermes {hermes.__version__}\n"
    written = [file for file in (ROOT / "src").rglob("*.py") if f'"{hermes.__version__}"' in file.read_text()]
    assert written == [ROOT / "src" / "hermes" / "__init__.py"]
