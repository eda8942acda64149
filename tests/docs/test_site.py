"""The documentation as a site: it loads nothing from elsewhere, fits a phone, and its search works from the disk."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.browser import Browser
from tests.support.environments import missing

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.thorough  # building it takes a dozen seconds
START, LONG = "index.html", "guide/store.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if "No module named mkdocs" in done.stderr:
        missing("mkdocs is not installed")
    assert done.returncode == 0, done.stderr
    return folder


class Loads(HTMLParser):
    """The addresses that a page loads by itself; links that a reader may follow are none."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev", "edit"):
            self.found.append(given.get("href", ""))
        elif tag != "a":
            self.found += [given[name] for name in ("src", "srcset", "data", "poster", "action") if name in given]


def test_no_page_and_no_style_names_another_server(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    loaded = {(page.name, address) for page in pages for address in Loads(page).found}
    assert len(loaded) > 200
    assert [one for one in loaded if re.match(r"\w+:|//", one[1]) and not one[1].startswith("data:")] == []
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", style.read_text()) == [], style.name


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_page_from_the_disk_fits_the_window_and_loads_files_only(site: Path, width: int, dark: bool) -> None:
    with Browser() as browser:
        for name in (START, LONG):
            browser.open(site / name, width, dark=dark)
            assert browser.value("document.documentElement.scrollWidth") <= width
            scheme = browser.value("document.body.getAttribute('data-md-color-scheme')")
            assert scheme == ("slate" if dark else "default")
            assert [one for one in browser.asked_for() if not one.startswith(("file:", "data:"))] == []
            assert browser.problems() == []


def test_the_search_works_in_a_page_from_the_disk(site: Path) -> None:
    with Browser() as browser:
        browser.open(site / START, 1280)
        browser.click("input[data-md-component=search-query]")
        browser.type("handoff")
        browser.key("End")  # the theme waits for a key
        browser.wait("document.querySelectorAll('.md-search-result__link').length")
        assert browser.value("document.querySelector('.md-search-result__link').href").startswith("file:")
        assert [one for one in browser.asked_for() if not one.startswith(("file:", "data:", "about:"))] == []
        assert browser.problems() == []
