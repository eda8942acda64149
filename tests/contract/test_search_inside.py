"""Parts of words against a brute-force oracle: what one token of a message contains is found, whatever it is written in.

The promise (docs/guide/search.md): a part with at least three letters or digits of one word, name or path is found in
every message that has it. Of a number or a hash that is its beginning, from four characters on.
"""

from __future__ import annotations

import json
import random
import unicodedata
from typing import Any

import pytest

from tests.support.sizes import some

from . import found, fully_found, marked, say, talk

WORDS = (
    "user order deploy parser index config server client stream window buffer thread quota lexer token vault".split()
)
GLUE = ["部署", "数据库", "設定を", "배포", "การตั้งค่า", "ระบบ", "案", "🚀", "1️⃣"]
LIGATURES = ["ﬁle", "ofﬁce", "ﬂow", "eﬀect", "ﬃx", "ｆｕｌｌｗｉｄｔｈ", "Ⅻbis", "naïveté", "ΟΔΟΣ", "Größe", "đặt"]


class World:
    """Messages made of tokens, and what the oracle knows of each."""

    def __init__(self, db: Any, seed: int) -> None:
        self.db, self.random = db, random.Random(seed)
        self.tokens: dict[int, list[tuple[str, bool]]] = {}  # of each message: its tokens, and whether each is a hash

    def name(self) -> str:
        some = self.random.sample(WORDS, self.random.randint(2, 3)) + self.random.choice(
            [[], ["id"], ["x"], ["by", "t"]]
        )
        style = self.random.randrange(4)
        if style == 0:
            return some[0] + "".join(word.title() for word in some[1:])
        return {1: "_", 2: ".", 3: "-"}[style].join(some)

    def hash(self) -> str:
        return "".join(self.random.choices("0123456789abcdef", k=self.random.choice([40, 64])))

    def token(self) -> tuple[str, bool]:
        kind = self.random.randrange(6)
        if kind == 0:
            return self.hash(), True
        if kind == 1:
            return self.random.choice(LIGATURES), False
        if kind == 2:
            return self.random.choice(GLUE) + self.name() + self.random.choice(["", *GLUE]), False
        if kind == 3:
            return self.name() + self.random.choice(GLUE), False
        return self.name(), False

    def say(self, number: int) -> None:
        tokens = [self.token() for _ in range(self.random.randint(2, 4))]
        text = " ".join(token for token, _ in tokens)
        arguments = {"command": text, "count": number}
        call = {"id": "c", "type": "function", "function": {"name": "terminal", "arguments": json.dumps(arguments)}}
        form = number % 7
        session = f"s{number % 5}"
        if form < 3:
            made = self.db.append_message(session, "user", text)
        elif form == 3:
            made = self.db.append_message(session, "user", [{"type": "text", "text": text}])
        else:
            calls: Any = [[call], call, json.dumps([call], ensure_ascii=False)][form - 4]
            made = self.db.append_message(session, "assistant", None, tool_calls=calls)
        self.tokens[made] = tokens

    def part(self) -> str:
        """A query: a part of one token that is long enough."""
        while True:
            tokens = self.tokens[self.random.choice(list(self.tokens))]
            token, is_hash = self.random.choice(tokens)
            if is_hash:
                return token[: self.random.randint(4, 12)]
            start = self.random.randrange(len(token))
            part = token[start : start + self.random.randint(3, 14)]
            if long_enough(part):
                return part

    def holding(self, part: str) -> set[int]:
        """The oracle's answer."""
        wanted = folded(part)
        return {
            number
            for number, tokens in self.tokens.items()
            if any(
                (folded(token).startswith(wanted) and len(wanted) >= 4) if is_hash else wanted in folded(token)
                for token, is_hash in tokens
            )
        }


def folded(text: str) -> str:
    """Compared without case, marks and compatibility forms; a keycap is no digit."""
    plain = unicodedata.normalize("NFKC", text.replace("1️⃣", "\ue000")).casefold()
    apart = "".join(c for c in unicodedata.normalize("NFD", plain) if not 0x300 <= ord(c) <= 0x36F)
    return unicodedata.normalize("NFC", apart).replace("đ", "d")


def long_enough(part: str) -> bool:
    """At least three letters or digits; where signs part them, not only single ones."""
    if sum(c.isalnum() for c in part) < 3 or not part[0].isalnum() or not part[-1].isalnum():
        return False
    runs = "".join(c if c.isalnum() else " " for c in part).split()
    return len(runs) == 1 or len(runs[-1]) > 1


@pytest.mark.parametrize("seed", some([1, 2, 3], 1))
def test_every_part_of_a_token_is_found(db: Any, seed: int) -> None:
    world = World(db, seed)
    for number in range(5):
        db.create_session(f"s{number}", "cli")
    for number in range(70):
        world.say(number)
    parts = sorted({world.part() for _ in range(150)})
    world.random.shuffle(parts)
    for number, part in enumerate(parts):
        if number == 40:
            db.catch_up()  # the same from the index and its list of words as from what is not indexed yet
        hits = found(db, part, limit=500)
        assert world.holding(part) <= hits, part
        if part.isascii() and part.isalnum():
            anywhere = {
                n for n, tokens in world.tokens.items() if any(folded(part) in folded(token) for token, _ in tokens)
            }
            assert hits <= anywhere, part


def test_a_keycap_is_no_digit(db: Any) -> None:
    (first, second, third) = say(db, "s", "step 1️⃣ of the list", "step 1 of the list", "2️⃣ comes next")
    assert found(db, "1️⃣") == {first} and found(db, "2️⃣") == {third}
    assert found(db, "1") == {second}
    assert ">>>1️⃣<<<" in db.search_messages("1️⃣")[0]["snippet"]


def test_a_ligature_is_found_and_shown_by_its_letters(db: Any) -> None:
    (made,) = say(db, "s", "put the ﬁle into the oﬃce drawer")
    for query in ("file", "FILE", "ﬁle", "office", "ffic", "file office"):
        assert found(db, query) == {made}, query
    assert ">>>file<<<" in db.search_messages("file")[0]["snippet"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("docker NOT UserById", {"other"}),
        ("dock NOT UserById", {"other"}),
        ("docker -UserById", {"other"}),
        ("docker NOT user_id", {"plain", "longer", "other"}),
        ("dock NOT fetch", set()),
        ("zetfudin NOT sanfu OR by_list", {"z", "list"}),
        ("zetfud NOT sanf", {"z"}),
        ("python -java", {"script", "py"}),
        ("pytho -java", {"py"}),
        ("python -java -script", {"script", "py"}),
        ("++ -java", {"cpp"}),
    ],
)
def test_what_is_left_out_stays_out_in_every_stage(db: Any, query: str, expected: set[str]) -> None:
    texts = {
        "plain": "docker and UserById fetched",
        "longer": "docker and getUserById fetched",
        "inside": "dockerfile calls getUserByIds, superuser_id fetched",
        "other": "docker alone, prefetched",
        "z": "zetfudin with nothing",
        "zs": "zetfudin and sanfu, list",
        "zsin": "the zetfudins and sanfus",
        "list": "order_by_list alone",
        "py": "python alone",
        "pyja": "python beside java",
        "script": "python beside javascript",
        "cpp": "x ++ y",
        "javapp": "java ++",
    }
    made = {say(db, name, text)[0]: name for name, text in texts.items()}
    assert {made[one] for one in fully_found(db, query)} == expected


@pytest.mark.parametrize("query", ["er_i", "us_i", "ser_i", "r_id", "er_id"])
def test_three_letters_across_an_underscore_are_found(db, query):
    here, *_ = talk(db, "s", "the column user_id of us_id", "is either in it")
    db.catch_up()
    assert found(db, query) == {here}
    assert marked(db.search_messages(query)[0]["snippet"]) == query


def test_a_name_is_found_by_an_ending_that_thousands_of_words_contain(db):
    letters = "abcdefghijklmnopqrstuvwxyz"
    say(db, "words", " ".join(f"ing{a}{b}{c}" for a in letters for b in letters for c in "abcd"))
    here, *_ = say(db, "name", "set running_config to 1")
    db.catch_up()
    assert found(db, "ing_conf") == {here}


def test_the_id_of_a_tool_call_finds_the_call_and_its_result(db):
    db.create_session("s", "cli")
    ids_ = ["call_Zx81AbQ9", "toolu_01ABCdef", "chatcmpl-tool-77ab12", "c1", "call_abcdefgh", "functions.ls:0"]
    expected = {}
    for number, one in enumerate(ids_):
        call = {"id": one, "type": "function", "function": {"name": "ls", "arguments": "{}"}}
        asked = db.append_message("s", "assistant", None, tool_calls=[call])
        expected[one] = {asked, db.append_message("s", "tool", f"output {number}", tool_call_id=one)}
    db.append_message("s", "user", "please call the functions of my mother")
    for _ in range(2):  # above the mark, and indexed
        for one in ids_:
            hits = db.search_messages(one)
            assert {
                hit["id"] for hit in hits if one in hit["snippet"].replace(">>>", "").replace("<<<", "")
            } == expected[one]
            assert all(marked(hit["snippet"]) for hit in hits)
        assert len(found(db, "call")) == 1
        db.catch_up()
    db.create_session("other", "telegram", user_id="7")
    assert found(db, ids_[0], visible_to=("telegram", "7")) == set()


def test_of_equal_hits_the_newest_is_first_whenever_it_was_stored(db):
    for number, at in enumerate([3000.0, 1000.0, 2000.0, 5000.0, 4000.0]):
        db.create_session(f"s{number}", "cli", started_at=at)
        db.append_message(f"s{number}", "user", "equal words about docker", timestamp=at)
    db.catch_up()
    for query in ("docker", '"equal words"', "equ*", "qual", "docker OR kubernetes"):
        whole = [hit["timestamp"] for hit in db.search_messages(query)]
        assert whole == [5000.0, 4000.0, 3000.0, 2000.0, 1000.0]
        assert [db.search_messages(query, limit=1, offset=n)[0]["timestamp"] for n in range(5)] == whole
