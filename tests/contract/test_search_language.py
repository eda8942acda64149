"""The query language: every form, its precedence, any text at all, and every script people write in."""

from __future__ import annotations

import json

import pytest

from . import found, fully_found, marked, say, shown, talk


@pytest.fixture
def store(db):
    """One message a session, so that ranking by session plays no part; the name is the session."""
    texts = {
        "dd": "the docker deployment failed twice",
        "d": "docker alone on this line",
        "k": "kubernetes is another matter",
        "dk": "docker and kubernetes together",
        "py": "python is readable",
        "pyja": "python beside java",
        "ja": "java beans",
        "deploying": "we were deploying on a friday",
        "phrase": "this is the exact phrase you want",
        "esarhp": "a phrase that is exact about nothing",
    }
    return db, {name: talk(db, name, text)[0] for name, text in texts.items()}


def names(store, query, **kw):
    db, message_ids = store
    back = {message_id: name for name, message_id in message_ids.items()}
    return {back[message_id] for message_id in fully_found(db, query, **kw)}


# ------------------------------------------------------------------ each form


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("docker", {"dd", "d", "dk"}),
        ("DOCKER", {"dd", "d", "dk"}),
        ("docker deployment", {"dd"}),
        ("deployment docker", {"dd"}),
        ("docker AND deployment", {"dd"}),
        ('"exact phrase"', {"phrase"}),
        ('"EXACT PHRASE"', {"phrase"}),
        ("docker OR kubernetes", {"dd", "d", "dk", "k"}),
        ("python NOT java", {"py"}),
        ("python AND NOT java", {"py"}),
        ("python -java", {"py"}),
        ('python -"beside java"', {"py"}),
        ("-java", {"pyja", "ja"}),
        ("-java python", {"pyja"}),
        ("python --java", {"pyja"}),
        ("beans -java", set()),
        ("python - java", {"pyja"}),
        ("deploy*", {"dd", "deploying"}),
        ("kube* docker", {"dk"}),
        ('docker "another matter"', set()),
        ('"another matter" kubernetes', {"k"}),
        ('python NOT "beside java"', {"py"}),
        ("(docker OR python) NOT (java OR deployment)", {"d", "dk", "py"}),
        ("(docker)", {"dd", "d", "dk"}),
        ("((docker)) ((deployment))", {"dd"}),
        ("kubernetes (docker OR matter)", {"k", "dk"}),
    ],
)
def test_each_form(store, query, expected):
    assert names(store, query) == expected


@pytest.mark.parametrize(
    ("query", "same_as"),
    [
        ("python OR docker deployment", "python OR (docker AND deployment)"),
        ("docker deployment OR python", "(docker AND deployment) OR python"),
        ("java OR python NOT beside", "java OR (python NOT beside)"),
        ("docker AND kubernetes OR python AND java", "(docker AND kubernetes) OR (python AND java)"),
        ("python NOT java NOT readable", "(python NOT java) NOT readable"),
        ("docker kubernetes NOT deployment", "docker AND (kubernetes NOT deployment)"),
    ],
)
def test_not_binds_before_and_before_or(store, query, same_as):
    assert names(store, query) == names(store, same_as)


def test_precedence_by_its_result(store):
    assert names(store, "java OR python NOT beside") == {"ja", "pyja", "py"}
    assert names(store, "(java OR python) NOT beside") == {"ja", "py"}
    assert names(store, "kubernetes OR docker deployment") == {"k", "dk", "dd"}
    assert names(store, "(kubernetes OR docker) deployment") == {"dd"}


def test_operators_are_upper_case_only(store):
    """In lower case they are words: "docker or kubernetes" asks for all three."""
    assert names(store, "docker or kubernetes") == set()
    assert names(store, "docker and kubernetes") == {"dk"}


def test_operators_inside_quotes_are_words(db):
    (yes,) = talk(db, "a", "this or that OR other")
    talk(db, "b", "that other")
    assert found(db, '"that OR other"') == {yes}


@pytest.mark.parametrize("query", ["hello AND", "AND hello", "hello OR", "OR hello", "hello AND AND", "(hello AND)"])
def test_an_operator_with_nothing_to_work_on_is_an_ordinary_word(db, query):
    (message_id,) = talk(db, "a", "hello and or not goodbye")
    assert message_id in found(db, query)


def test_a_lone_operator_finds_the_word(db):
    (message_id,) = talk(db, "a", "salt and pepper or not")
    for query in ("AND", "OR", "NOT", "and"):
        assert found(db, query) == {message_id}, query


def test_quotes_are_exact_about_order_and_neighbourhood(store):
    assert names(store, '"phrase exact"') == set()
    assert names(store, '"docker failed"') == set()


def test_case_and_accents_do_not_matter(db):
    (message_id,) = talk(db, "a", "Crème BRÛLÉE with Ñandú")
    for query in ("creme", "crème", "CRÈME", "brulee", "nandu", '"creme brulee"'):
        assert found(db, query) == {message_id}, query


# ------------------------------------------------------------------ any text is a query


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("tell me why it broke", "why?"),
        ("well it's raining", "it's"),
        ("well it's raining", "it’s"),
        ("see a/b.py for that", "a/b.py"),
        ("log in as user@host please", "user@host"),
        ("we are at 50% now", "50%"),
        ("fixed in #123 yesterday", "#123"),
        ("the chat-send command", "chat-send"),
        ("an unmatched quote here", 'unmatched"'),
        ("an unmatched quote here", '"unmatched quote'),
        ("an unmatched quote here", '"unmatched" "quote'),
        ("brackets are fine", "(brackets"),
        ("brackets are fine", "brackets)"),
        ("brackets are fine", ")(brackets)("),
        ("call foo() now", "foo()"),
        ("a column: value", "column:value"),
        ("the content: column and value", "content:column"),
        ("caret and braces", "^caret"),
        ("caret and braces", "{braces}"),
        ("plus and -minus", "+plus -minus"),
        ("stars everywhere", "*stars*"),
        ("stars everywhere", "stars **"),
        ("the near miss", "NEAR(miss)"),
        ("c++ and c# code", "c++"),
        ("version 3.11.4 is out", "3.11.4"),
        ("visit https://example.org/a?b=c#d today", "https://example.org/a?b=c#d"),
        (r"open C:\Users\me\file.txt", r"C:\Users\me\file.txt"),
        ("set MY_VAR_NAME=3", "MY_VAR_NAME"),
        ("set MY_VAR_NAME=3", "$MY_VAR_NAME"),
        ("the self.assertEqual(a, b) line", "self.assertEqual(a,"),
        ("don’t panic", "don't"),
        ("say “hello there” twice", "“hello there”"),
        ("e-mail me", "e-mail"),
        ("comma, separated; list", "comma,separated"),
        ("nul in the query", "nul\x00"),
        ("surrogate in the query", "surrogate \ud800"),
        ("tabs and lines", "tabs\t\n\r lines"),
        ("full width ＡＢＣ text", "ＡＢＣ"),
        ("price is 5€", "5€"),
        ("<b>bold</b> move", "<b>bold</b>"),
        ("it is 12:30 now", "12:30"),
        ("rm -rf /tmp/x", "rm -rf /tmp/x"),
        ("-- a comment; DROP TABLE", "'; DROP TABLE --"),
    ],
)
def test_punctuation_is_never_an_error_and_never_empties_the_answer(db, text, query):
    (message_id,) = talk(db, "a", text)
    talk(db, "b", "something else entirely")
    assert message_id in found(db, query)


@pytest.mark.parametrize("query", ["\U0001f680", "launch \U0001f680", "\U0001f680 launch"])
def test_emoji_in_a_query(db, query):
    (message_id,) = talk(db, "a", "launch \U0001f680 tomorrow")
    assert found(db, query) == {message_id}


@pytest.mark.parametrize("query", ["", " ", "\t\n", "\u3000"])
def test_an_empty_query_finds_nothing(db, query):
    talk(db, "a", "something")
    assert db.search_messages(query) == []


@pytest.mark.parametrize(
    "query", ["?", "...", '"', '""', '" "', "()", "(", "*", "-", "\x00", "\ud800", "AND OR NOT", "!!" * 50]
)
def test_nothing_but_signs_is_answered_with_a_list(db, query):
    talk(db, "a", "something")
    assert isinstance(db.search_messages(query), list)


@pytest.mark.parametrize(
    ("query", "yes", "no"),
    [
        ("chat-send", "use chat-send here", "send the chat"),
        ("my.module.name", "import my.module.name", "name my own module"),
        ("src/app", "look in src/app today", "the app has its src elsewhere"),
        ("well-known-thing", "a well-known-thing", "a thing that is well known"),
    ],
)
def test_hyphenated_dotted_and_slashed_terms_are_phrases(db, query, yes, no):
    (wanted,) = talk(db, "a", yes)
    talk(db, "b", no)
    assert found(db, query) == {wanted}


def test_an_empty_phrase_beside_a_word_does_not_hide_it(db):
    (message_id,) = talk(db, "a", "hello there")
    assert found(db, 'hello ""') == {message_id}


# ------------------------------------------------------------------ what is searched


def test_tool_names_and_tool_calls_are_found(db):
    db.create_session("s", "cli")
    call = db.append_message(
        "s",
        "assistant",
        None,
        tool_calls=[{"id": "c1", "function": {"name": "fetch_weather", "arguments": '{"city": "Reykjavik"}'}}],
    )
    result = db.append_message("s", "tool", "cold", tool_name="fetch_weather", tool_call_id="c1")
    assert found(db, "Reykjavik") == {call}
    assert found(db, "fetch_weather") == {call, result}


def test_json_is_indexed_as_the_text_it_stands_for(db):
    db.create_session("s", "cli")
    arguments = json.dumps(
        {
            "text": "first line\nzebrafish\tswims",
            "zh": "文件管理",
            "q": 'say "marmalade"',
            "p": "C:\\temp\\newt",
        }
    )
    assert "\\u6587" in arguments and "\\nzebrafish" in arguments
    call = db.append_message(
        "s", "assistant", None, tool_calls=[{"id": "1", "function": {"name": "f", "arguments": arguments}}]
    )
    output = json.dumps({"output": "done\noctopus", "file": "数据库", "tail": "\tpelican"})
    result = db.append_message("s", "tool", output, tool_name="f", tool_call_id="1")
    for query in ("zebrafish", "文件", "管理", "文件管理", "marmalade", "newt"):
        assert found(db, query) == {call}, query
    for query in ("octopus", "数据", "数据库", "pelican"):
        assert found(db, query) == {result}, query
    for query in ("nzebrafish", "noctopus", "tpelican", "u6587"):
        assert found(db, query) == set(), query
    assert shown(db, "s")[1] == output, "what comes back is still the JSON that went in"


def test_of_an_enormous_phrase_the_beginning_counts(db):
    """Each pair of Chinese characters is a word of the index: an unbounded phrase of them took seconds in a long text."""
    text = "".join(chr(0x4E00 + number * 7 % 5_000) for number in range(1_900))
    whole, beginning, rest = say(db, "s", f"前{text}后", text[:300], text[300:])
    for _ in range(2):  # above the mark, and indexed
        assert found(db, f'"{text}"') == {whole, beginning}
        assert found(db, f'"{text[:60]}"') == {whole, beginning}
        assert found(db, f'"{text[280:330]}"') == {whole}
        assert found(db, f'"{text[400:]}"') == {whole, rest}
        db.catch_up()


def test_a_snippet_of_json_shows_text_with_markers(db):
    db.create_session("s", "cli")
    db.append_message("s", "tool", json.dumps({"output": "one\noctopus 文件"}), tool_name="f")
    (hit,) = db.search_messages("octopus")
    assert marked(hit["snippet"]) == "octopus"
    (hit,) = db.search_messages("文件")
    assert marked(hit["snippet"]) == "文件"


def test_reasoning_is_no_part_of_the_search(db):
    """The index covers content, tool name and tool calls."""
    db.create_session("s", "cli")
    db.append_message("s", "assistant", "visible", reasoning="hidden platypus")
    assert found(db, "platypus") == set()


def test_a_message_is_found_at_once_and_never_twice(db):
    for n in range(150):
        (message_id,) = say(db, "s", f"entry{n}x with common words")
        if n % 10 == 0:
            assert found(db, f"entry{n}x") == {message_id}
    hits = db.search_messages("common", limit=500)
    assert len(hits) == len({hit["id"] for hit in hits}) == 150


def test_search_is_complete_before_and_after_catching_up(db):
    for n in range(30):
        say(db, f"s{n % 3}", f"number{n} of the herd 象群 getHerdById")
    queries = ["herd", "number17", "herd NOT number3", '"of the herd"', "象", "HerdBy", "num*"]
    before = {query: found(db, query) for query in queries}
    db.catch_up()
    assert db.index_status()["pending"] == 0
    assert {query: found(db, query) for query in queries} == before
    assert len(before["herd"]) == len(before["象"]) == len(before["HerdBy"]) == 30


# ------------------------------------------------------------------ natural questions


def test_a_natural_question_is_relaxed_and_marked(db):
    (message_id,) = talk(db, "a", "I configured nginx as a reverse proxy in front of the application")
    talk(db, "b", "the cat sat on the mat")
    hits = db.search_messages("how did we configure the nginx proxy last week?")
    assert hits and hits[0]["id"] == message_id
    assert hits[0]["relaxed"] is True and hits[0]["reason"] == "relaxed"


def test_full_hits_come_before_relaxed_ones_and_are_not_marked(db):
    (full,) = talk(db, "a", "the nginx proxy timeout is sixty seconds")
    (part,) = talk(db, "b", "the nginx proxy is fine")
    hits = db.search_messages("nginx proxy timeout")
    assert hits[0]["id"] == full and not hits[0]["relaxed"]
    for hit in hits[1:]:
        assert hit["relaxed"] is True and hit["id"] == part


def test_paging_through_relaxed_hits_neither_skips_nor_repeats(db):
    for n in range(12):
        talk(db, f"s{n}", "the nginx proxy number " + "x" * n)
    query = "where does nginx keep the proxy certificates"
    whole = [hit["id"] for hit in db.search_messages(query, limit=50)]
    pages = [hit["id"] for offset in range(0, 15, 5) for hit in db.search_messages(query, limit=5, offset=offset)]
    assert len(whole) == 12 and pages == whole


@pytest.mark.parametrize(
    "query",
    [
        "walrus",
        "nginx walrus",
        "nginx proxy AND walrus",
        '"nginx proxy walrus"',
        'nginx proxy "walrus"',
        "nginx AND proxy AND walrus",
        "(nginx proxy walrus) OR giraffe",
        "walrus OR giraffe OR zebra",
    ],
)
def test_one_or_two_words_quotes_and_operators_are_never_relaxed(db, query):
    talk(db, "a", "the nginx proxy is fine")
    assert db.search_messages(query) == []


def test_a_question_about_nothing_in_the_store_finds_nothing(db):
    talk(db, "a", "the nginx proxy is fine")
    assert db.search_messages("giraffes eat acacia leaves") == []


# ------------------------------------------------------------------ scripts without spaces, marks, substrings


@pytest.fixture
def world(db):
    texts = {
        "zh": "我们讨论了数据库的部署方案",
        "zh2": "数据很多，但没有仓库",
        "glued": "用Docker部署微服务v2版本",
        "ja": "コンテナの設定を変更しました",
        "ko": "데이터베이스를 백업했습니다",
        "th": "ผมต้องการสั่งอาหารไทยพรุ่งนี้",
        "vi": "Tôi muốn đặt vé máy bay đi Hà Nội",
        "id": "call getUserById(42) and parse_http_response",
        "en": "plain English without anything special",
    }
    return db, {name: talk(db, name, text)[0] for name, text in texts.items()}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("部", {"zh", "glued"}),
        ("库", {"zh", "zh2"}),
        ("案", {"zh"}),
        ("我", {"zh"}),
        ("部署", {"zh", "glued"}),
        ("数据", {"zh", "zh2"}),
        ("数据库", {"zh"}),
        ("数据库的部署", {"zh"}),
        ("我们讨论了数据库的部署方案", {"zh"}),
        ("据部", set()),
        ("Docker", {"glued"}),
        ("docker", {"glued"}),
        ("Docker部署", {"glued"}),
        ("用Docker", {"glued"}),
        ("微服务v2", {"glued"}),
        ("v2版本", {"glued"}),
        ("v2", {"glued"}),
        ("コンテナ", {"ja"}),
        ("設定", {"ja"}),
        ("テナ", {"ja"}),
        ("を", {"ja"}),
        ("데이터베이스", {"ko"}),
        ("베이스", {"ko"}),
        ("백업", {"ko"}),
        ("อาหาร", {"th"}),
        ("อาหารไทย", {"th"}),
        ("พรุ่งนี้", {"th"}),
        ("đặt vé", {"vi"}),
        ("dat ve", {"vi"}),
        ("máy bay", {"vi"}),
        ("may bay", {"vi"}),
        ("Hà Nội", {"vi"}),
        ("ha noi", {"vi"}),
        ('"dat ve may bay"', {"vi"}),
        ("UserById", {"id"}),
        ("userbyid", {"id"}),
        ("getUser", {"id"}),
        ("etUserBy", {"id"}),
        ("http_response", {"id"}),
        ("http", {"id"}),
        ("nglis", {"en"}),
    ],
)
def test_every_script_and_substring_is_found_with_its_marker(world, query, expected):
    assert names(world, query) == expected
    db, _ = world
    for hit in db.search_messages(query):
        assert marked(hit["snippet"]), hit["snippet"]


@pytest.mark.parametrize(
    ("query", "marked_text"),
    [
        ("部署", "部署"),
        ("数据库", "数据库"),
        ("案", "案"),
        ("コンテナ", "コンテナ"),
        ("อาหาร", "อาหาร"),
        ("UserById", "userbyid"),
    ],
)
def test_the_marker_holds_what_was_asked(world, query, marked_text):
    db, _ = world
    for hit in db.search_messages(query):
        assert marked_text in marked(hit["snippet"])
        bare = hit["snippet"].replace(">>>", "").replace("<<<", "").strip(". …")
        assert bare in shown(db, hit["session_id"])[0]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("部署 数据库", {"zh"}),
        ("部署 AND 数据", {"zh"}),
        ("部署 NOT 数据库", {"glued"}),
        ("部署 NOT 数", {"glued"}),
        ("设定 OR 設定", {"ja"}),
        ("案 OR を", {"zh", "ja"}),
        ("数据 NOT 部署", {"zh2"}),
        ("Docker AND 部署", {"glued"}),
        ("Docker NOT 部署", set()),
        ("(部署 OR 设) Docker", {"glued"}),
        ("อาหาร OR 部署", {"th", "zh", "glued"}),
        ("อาหาร NOT ไทย", set()),
        ("UserById OR 백업", {"id", "ko"}),
        ("UserById AND http_response", {"id"}),
        ("UserById NOT http_response", set()),
        ("UserById docker", set()),
        ("ve NOT bay", set()),
        ('"数据库" "部署"', {"zh"}),
        ("数据*", {"zh", "zh2"}),
    ],
)
def test_operators_hold_for_every_script(world, query, expected):
    assert names(world, query) == expected


def test_vietnamese_typed_as_separate_marks_is_the_same_word(db):
    import unicodedata

    text = "đặt vé máy bay"
    (whole,) = talk(db, "a", unicodedata.normalize("NFC", text))
    (apart,) = talk(db, "b", unicodedata.normalize("NFD", text))
    for form in ("NFC", "NFD"):
        assert found(db, unicodedata.normalize(form, "máy bay")) == {whole, apart}
    assert found(db, "may bay") == {whole, apart}


def test_one_cjk_character_is_found_wherever_it_stands(db):
    wanted = {
        talk(db, f"s{n}", text)[0]
        for n, text in enumerate(["龍", "龍が", "青龍", "青龍刀", "x龍y", "a 龍 b", "「龍」"])
    }
    talk(db, "no", "竜")
    assert found(db, "龍") == wanted


def test_rare_characters_beyond_the_basic_plane_are_found(db):
    (message_id,) = talk(db, "a", "姓\U00020bb7野家です")
    assert found(db, "\U00020bb7") == {message_id}
    assert found(db, "\U00020bb7野") == {message_id}


# ------------------------------------------------------------------ questions


def test_a_question_marks_what_it_is_about_and_not_its_small_words(db):
    db.create_session("s", "cli")
    db.append_message("s", "assistant", "so I do what a garden needs: a hedge, and I do it in the spring")
    (hit,) = db.search_messages("what did I do about a garden hedge?")
    assert ">>>garden<<<" in hit["snippet"] and ">>>hedge<<<" in hit["snippet"]
    assert ">>>I<<<" not in hit["snippet"] and ">>>a<<<" not in hit["snippet"] and ">>>do<<<" not in hit["snippet"]


def test_a_question_with_a_part_of_a_word_finds_the_word(db):
    db.create_session("s", "cli")
    wanted = db.append_message("s", "user", "the zetfudinator is broken again")
    db.append_message("s", "user", "something else is broken")
    assert db.search_messages("where did we put the zetfudin?")[0]["id"] == wanted


def test_a_question_finds_an_old_message_with_all_it_is_about_behind_many_with_some_of_it(db):
    db.create_session("old", "cli")
    wanted = db.append_message("old", "user", "the kettle and the ladder stand in the cellar")
    for word in ("kettle", "ladder"):
        db.create_session(word, "cli")
    for number in range(440):
        word = ("kettle", "ladder")[number % 2]
        db.append_message(word, "user", f"{word} number {number}")
    hits = db.search_messages("where did I put the kettle and the ladder?")
    assert hits[0]["id"] == wanted and hits[0]["relaxed"]


def test_a_question_answered_word_for_word_is_a_match(db):
    db.create_session("s", "cli")
    wanted = db.append_message("s", "user", "How do I water a cactus in winter?")
    db.append_message("s", "assistant", "A cactus wants little water in winter.")
    hits = db.search_messages("how do I water a cactus in winter")
    assert (hits[0]["id"], hits[0]["reason"]) == (wanted, "match")


def test_the_greek_final_sigma_is_a_sigma(db):
    ids_ = talk(
        db, "s", "η ΟΔΟΣ είναι κλειστή", "η οδός είναι ανοιχτή", "οδοσ, as some type it", "ο δρόμος", "οδοσήμανση"
    )
    for query in ("οδός", "ΟΔΟΣ", "οδοσ", "οδος"):
        assert fully_found(db, query) >= set(ids_[:3]), query
    assert fully_found(db, '"η οδός είναι"') == set(ids_[:2])
    assert fully_found(db, "οδος*") == {*ids_[:3], ids_[4]}
    assert fully_found(db, "ρομος") == {ids_[3]}
    db.catch_up()
    for query in ("οδός", "ΟΔΟΣ", "οδοσ", "οδος"):
        assert fully_found(db, query) >= set(ids_[:3]), query
    assert fully_found(db, '"η οδός είναι"') == set(ids_[:2])
    assert fully_found(db, "οδος*") == {*ids_[:3], ids_[4]}
    assert fully_found(db, "ρομος") == {ids_[3]}
    assert db.check() == []
