"""The project's own pages name what exists: files, make targets, pages of the site, one version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import hermes
from hermes.gateway.platforms import BUILT_IN
from hermes.interop import formats
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


def test_every_module_that_architecture_names_exists() -> None:
    named = set(re.findall(r"[\w/]+\.py\b", (ROOT / "docs/architecture.md").read_text()))
    modules = [path.as_posix() for folder in ("src", "tools") for path in (ROOT / folder).rglob("*.py")]
    assert len(named) > 60
    assert sorted(name for name in named if not any(path.endswith(f"/{name}") for path in modules)) == []


def test_every_make_target_that_contributing_names_exists() -> None:
    rules = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"make ([\w-]+)", (ROOT / "CONTRIBUTING.md").read_text()))
    assert {name for name in named if not re.search(rf"^{name}:", rules, re.MULTILINE)} == set()


def test_every_page_is_in_the_menu_once_and_two_steps_from_the_start_page_at_most() -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    menu = re.findall(r"[\w/-]+\.md", str(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(menu) == sorted(pages)

    def linked(page: str) -> set[str]:
        found = re.findall(r"\]\(([\w./-]+\.md)", (docs / page).read_text())
        return {(docs / page).parent.joinpath(one).resolve().relative_to(docs).as_posix() for one in found}

    first = linked("index.md")
    assert pages - {"index.md"} - first - set().union(*(linked(page) for page in first)) == set()


def test_the_numbers_of_programs_and_platforms_are_those_of_the_registries() -> None:
    rows = re.findall(
        r"^\| \[(.*?)\]\(import/([\w-]+)\.md\)", (ROOT / "docs/guide/import.md").read_text(), re.MULTILINE
    )
    others = [(name, page) for names, page in rows for name in names.split(", ") if page != "hermes"]
    assert {page for _, page in others} == {one.name for one in formats.histories()} - {"database"}
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text()
        assert set(re.findall(r"(\d+) programs", text)) == {str(len(others))}, page
        assert set(re.findall(r"(\d+) chat platforms", text)) == {str(len(BUILT_IN))}, page


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
