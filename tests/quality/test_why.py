"""`hermes why` on a repository that three programs and its owner changed: sixty questions with known answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.quality.why_story import histories, tell
from tests.support import program

FILE, NOTHING = "file", "nothing"  # only the file is known to the record; not even that
CART, DISCOUNT, SHIPPING, HTTP = "Write a cart", "five per cent", "shipping is free", "over HTTP"
COUPONS, NAMES, TAX, README = "coupon codes", "spell out", "added tax", "a readme"
LOG, ZERO, TITLE, ROWS = "log every order", "zero or less", "window title", "list the rows"

QUESTIONS = {
    "shop/cart.py": [
        ('"""A shopping cart."""', CART), ("MAX_COUPONS = 3", FILE), ("class Cart:", CART), ("def __init__", CART),
        ("self.rows = []", CART), ("self.coupons = set()", COUPONS), ("def add(", NAMES), ("self.rows.append(", NAMES),
        ("def total(", CART), ("exact = ", NAMES), ("share = ", COUPONS), ("return round(", COUPONS),
        ("def redeem(", COUPONS), ("self.coupons.add(", COUPONS), ("def clear(", FILE), ("self.rows.clear()", FILE),
        ("def is_empty(", CART), ("return not self.rows", CART), ("CENTS = 2", CART),
    ],
    "shop/pricing.py": [
        ("BULK = 10", DISCOUNT), ("BULK_DISCOUNT = ", DISCOUNT), ("FREE_FROM = ", SHIPPING), ("SHIPPING = ", SHIPPING),
        ("VAT = ", README), ("COUPONS = ", COUPONS), ("def discounted(", DISCOUNT), ("if qty >= ", DISCOUNT),
        ("return price * (1 - ", DISCOUNT), ("    return price\n", DISCOUNT), ("def shipping(", SHIPPING),
        ("without tax.", TAX), ("return 0 if total", SHIPPING), ("def with_tax(", TAX), ("(1 + VAT)", TAX),
    ],
    "shop/api.py": [
        ("import logging", LOG), ("from flask import", HTTP), ("from shop.cart", HTTP), ("app = Flask(", HTTP),
        ("log = logging", LOG), ("cart = Cart()", HTTP), ("@app.post(", HTTP), ("def add_item(", HTTP),
        ("body = request", HTTP), ('if body.get("qty"', ZERO), ('error="quantity"', ZERO), ("cart.add(", NAMES),
        ("log.info(", LOG), ("jsonify(rows=", HTTP), ("@app.get(", HTTP), ("def show_total(", HTTP), ("if cart:", FILE),
        ("jsonify(total=cart.total())", HTTP), ("jsonify(total=0)", FILE),
    ],
    "web/app.js": [
        ("async function load", TITLE), ("const answer", TITLE), ("const list", ROWS), ("function show", ROWS),
        ("load();", TITLE),
    ],
    "README.md": [("Start it with", README)],
    "LICENSE": [("All rights reserved", NOTHING)],
}  # fmt: skip


@dataclass
class Shop:
    home: Path
    repository: Path
    moved: Path

    def why(self, folder: Path, *words: str, status: int = 0) -> dict[str, Any]:
        done = program.run("why", *words, "--json", home=self.home, cwd=folder)
        assert done.status == status, (words, done)
        found: dict[str, Any] = json.loads(done.out)
        return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    root = tmp_path_factory.mktemp("story")
    story = tell(root)
    for file in histories(story, root / "user"):
        done = program.run("sessions", "import", file, home=root / "home")
        assert done.status == 0, done
    moved = root / "elsewhere" / "checkout"
    shutil.copytree(story.repository, moved)
    return Shop(root / "home", story.repository, moved)


def line_number(file: Path, words: str) -> int:
    """The line that holds these words; a text with its line feed is a line's end."""
    for number, line in enumerate(file.read_text().splitlines(keepends=True), 1):
        if words in line:
            return number
    raise AssertionError((file, words))


@pytest.mark.thorough
def test_sixty_questions(shop: Shop) -> None:
    wrong = []
    asked = [(path, words, expected) for path, pairs in QUESTIONS.items() for words, expected in pairs]
    for number, (path, words, expected) in enumerate(asked):
        folder = shop.moved if number % 3 == 0 else shop.repository
        place = f"{path}:{line_number(folder / path, words)}"
        found = shop.why(folder, place, status=1 if expected == NOTHING else 0)
        if expected in (FILE, NOTHING):
            right = found["matched"] == expected
        else:
            right = found["matched"] == "line" and expected in found["changes"][0]["request"]
        if not right:
            wrong.append((place, words, expected, found["matched"], [one["request"] for one in found["changes"][:2]]))
    assert len(asked) == 60
    assert len(wrong) <= 5, "\n".join(map(str, wrong))


def test_a_range_and_a_whole_file(shop: Shop) -> None:
    """Each conversation that wrote one of the lines, newest first; none of another project with such a file."""
    found = shop.why(shop.repository, "shop/pricing.py:1-6")
    requests = [one["request"] for one in found["changes"]]
    assert len(requests) == 4 and all(
        words in one for words, one in zip([README, COUPONS, SHIPPING, DISCOUNT], requests)
    )
    whole = shop.why(shop.moved, "shop/cart.py")
    assert whole["conversations"] == 3  # the toy cart of the blog is another file
    times = [one["time"] for one in whole["changes"]]
    assert times == sorted(times, reverse=True)
    assert all("hermes" in one["resume"] and one["session_id"] in one["resume"] for one in whole["changes"])
    assert {one["words"] for one in whole["changes"]} >= {"A coupon takes a share off the sum.", "One word everywhere."}
