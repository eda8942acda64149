"""The query language: what each text means, and that every text means something."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.store.text.query import And, Leaf, Node, Not, Or, Query, leaves, parse, positive
from tests.support.sizes import size

pytestmark = pytest.mark.mechanism


def word(text: str, prefix: bool = False) -> Leaf:
    return Leaf(text, "word", prefix)


def phrase(text: str, prefix: bool = False) -> Leaf:
    return Leaf(text, "phrase", prefix)


A, B, C, D, E = (word(letter) for letter in "abcde")


# --- named examples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("docker", word("docker")),
        ("docker deployment", And((word("docker"), word("deployment")))),
        ('"exact phrase"', phrase("exact phrase")),
        ("docker OR kubernetes", Or((word("docker"), word("kubernetes")))),
        ("python NOT java", Not(word("python"), word("java"))),
        ("deploy*", word("deploy", prefix=True)),
        ('"exact phra"*', phrase("exact phra", prefix=True)),
        ("a AND b", And((A, B))),
        ("a AND NOT b", Not(A, B)),
        ("(a OR b) c", And((Or((A, B)), C))),
        ('("a b"* OR c) NOT d', Not(Or((phrase("a b", prefix=True), C)), D)),
        # NOT binds before AND, AND before OR
        ("a OR b c NOT d OR e", Or((A, And((B, Not(C, D))), E))),
        ("a NOT b c", And((Not(A, B), C))),
        ("a NOT b OR c", Or((Not(A, B), C))),
        ("a NOT b NOT c", Not(A, Or((B, C)))),
        ("a NOT (b c)", Not(A, And((B, C)))),
        ("(a NOT b) NOT c", Not(A, Or((B, C)))),
        ("a (b OR (c NOT d))", And((A, Or((B, Not(C, D)))))),
        # an operator with nothing to work on is dropped
        ("hello AND", word("hello")),
        ("hello OR", word("hello")),
        ("hello NOT", word("hello")),
        ("AND hello", word("hello")),
        ("NOT java", word("java")),
        ("(NOT a) b", And((A, B))),
        ("a OR NOT b", Or((A, B))),
        ("a AND OR b", And((A, B))),
        ("a NOT NOT b", Not(A, B)),
        ("(a OR) b", And((A, B))),
        ("a (AND) b", And((A, B))),
        ("a NOT () b", And((A, B))),
        ("a OR () b", Or((A, B))),
        # a quote or parenthesis without a partner is as if absent
        ('"hello world', And((word("hello"), word("world")))),
        ('hello" world', And((word("hello"), word("world")))),
        ("(a OR b", Or((A, B))),
        ("a OR b)", Or((A, B))),
        ("a) OR (b", Or((A, B))),
        ("(a (b OR c)", And((A, Or((B, C))))),
        ('a OR "', A),
        ("( a", A),
        ('"a b" "c', And((phrase("a b"), C))),
        ('5" or 6" disk', And((word("5"), word("or"), word("6"), word("disk")))),
        ('ab"cd', word('ab"cd')),
        ("deploy*)", word("deploy", prefix=True)),
        # a call with a space in it is two words, and a group in it still groups
        ("f(x, y)", And((word("f(x,"), word("y)")))),
        ("f(x AND (y OR z))", And((word("f(x"), Or((word("y"), word("z")))))),
        # operators in quotes are text, and quotes of one kind may stand inside another
        ('"this OR that"', phrase("this OR that")),
        ('\u201cthe "inner" word\u201d', phrase('the "inner" word')),
        # quotes may touch text that knows no spaces
        ('搜索"错误信息"相关', And((word("搜索"), phrase("错误信息"), word("相关")))),
        # punctuation glued to a phrase is not searched for
        ('{"key": "some value"}', And((phrase("key"), phrase("some value")))),
        # full-width parentheses and spaces work like the narrow ones
        ("\uff08a OR b\uff09\u3000c", And((Or((A, B)), C))),
        # control characters and lone surrogates are spaces
        ("a\0b\x9fc\ud800d", And((A, B, C, D))),
    ],
)
def test_every_form_means_what_the_guide_says(text: str, tree: Node) -> None:
    assert parse(text).tree == tree


@pytest.mark.parametrize(
    "text",
    (
        "why? it's a/b.py user@host 50% #123 chat-send --flag C++ x=1 100%_done "
        'main() foo(bar) f(g(x)) a[0] (foo)(bar) 你好（世界） * a/* **bold** *.py /* :) ?! 😀 👨‍👩‍👧 () " ... -->'
    ).split(),
)
def test_punctuation_in_a_word_or_alone_stays(text: str) -> None:
    assert parse(text) == Query(word(text), plain=True, words=(text,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("AND", ["AND"]),
        ("OR NOT", ["OR", "NOT"]),
        ("(AND)", ["AND"]),
        ('" NOT', ["NOT"]),
        ("NOT NOT", ["NOT"]),
    ],
)
def test_a_query_of_operators_only_looks_for_them_as_words(text: str, words: list[str]) -> None:
    query = parse(text)
    assert list(leaves(query.tree)) == [word(each) for each in words]
    assert query.plain


@pytest.mark.parametrize("text", ["and", "Or", "nOT", "cats and dogs or not", "ANDROID", "AND,"])
def test_operators_are_upper_case_whole_words(text: str) -> None:
    query = parse(text)
    assert query.plain
    assert list(query.words) == text.split()


@pytest.mark.parametrize(
    "text",
    [
        "\u201ca b\u201d",
        "\u201ea b\u201c",
        "\u00aba b\u00bb",
        "\u00bba b\u00ab",
        "\u201da b\u201d",
        "\uff02a b\uff02",
    ],
)
def test_typographic_and_full_width_quotes_are_quotes(text: str) -> None:
    assert parse(text).tree == phrase("a b")


@pytest.mark.parametrize("text", ['"" a', 'a " "', "a ()", "() a ( )"])
def test_empty_quotes_and_groups_are_nothing(text: str) -> None:
    assert parse(text) == Query(A, plain=True, words=("a",))


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\u3000\xa0", "\0\x1f", "\ud800\udfff"])
def test_blank_text_has_no_tree(text: str) -> None:
    assert parse(text) == Query(None, plain=True, words=())


def test_repeated_leaves_collapse_whatever_their_case() -> None:
    assert parse("Docker docker DOCKER").tree == word("Docker")
    assert parse("a OR b OR A OR a").tree == Or((A, B))
    assert parse("((a))").tree == A
    assert parse("a (b (c d))").tree == And((A, B, C, D))


@pytest.mark.parametrize("text", ['"a" b', "a*", "a OR b", "a AND b", "a NOT b", "a AND NOT b"])
def test_quotes_operators_and_stars_make_a_query_not_plain(text: str) -> None:
    assert not parse(text).plain


def test_positive_leaves_out_what_is_dropped_and_leaves_does_not() -> None:
    tree = parse("a (b NOT c) OR d NOT (e a)").tree
    assert [leaf.text for leaf in leaves(tree)] == ["a", "b", "c", "d", "e", "a"]
    assert [leaf.text for leaf in positive(tree)] == ["a", "b", "d"]
    assert list(leaves(None)) == list(positive(None)) == []


# --- bounds -------------------------------------------------------------------------------------------------


def test_the_first_64_distinct_leaves_win() -> None:
    query = parse(" ".join(f"w{number} w0" for number in range(100)))
    assert query.words == tuple(f"w{number}" for number in range(64))


def test_a_phrase_is_cut_after_64_words_and_is_then_no_prefix() -> None:
    assert parse('"' + "a " * 100 + '"*').tree == phrase(" ".join("a" * 64))


def test_a_leaf_cut_inside_a_word_becomes_a_prefix() -> None:
    query = parse("x" * 5000)
    assert query == Query(word("x" * 1000, prefix=True), plain=True, words=("x" * 1000,))


def test_a_tree_never_has_more_than_256_places() -> None:
    text = " OR ".join(f"(a{number % 8} b{number % 7} c{number % 5})" for number in range(280))
    assert len(list(leaves(parse(text).tree))) <= 256


LONG = size(200_000, 1_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "(" * LONG,
        "(" * (LONG // 2) + "a" + ")" * (LONG // 2),
        "( " * (LONG // 3) + "a OR b",
        "a " + "NOT b " * (LONG // 6),
        "a " + "OR b " * (LONG // 5),
        '"' * LONG,
        "\u00ab\u201e\u201c" * (LONG // 3),
        "x" * LONG,
        "a) (b " * (LONG // 6),
    ],
    ids=["open", "nested", "open-spaced", "not", "or", "quotes", "mixed-quotes", "one-word", "crossed"],
)
def test_a_megabyte_of_noise_gives_a_small_tree(text: str) -> None:
    query = parse(text)
    assert query.tree is not None
    assert len(query.words) <= 64
    assert depth(query.tree) < 120


# --- properties ---------------------------------------------------------------------------------------------

PIECES = [
    *"abc",
    *' ()"*:,',
    "AND",
    "OR",
    "NOT",
    "not",
    " ( ",
    " ) ",
    "\u201c",
    "\u201d",
    "\u00ab",
    "\uff08",
    "\uff09",
    "\0",
]
soup = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
any_text = st.one_of(st.text(max_size=120), soup, st.text(alphabet=' "()*\u201c\u201d\u00ab\u00bbNOTANDa', max_size=80))


def children(node: Node | None) -> tuple[Node, ...]:
    if node is None or isinstance(node, Leaf):
        return ()
    return (node.keep, node.drop) if isinstance(node, Not) else node.children


def every(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from every(child)


def depth(node: Node) -> int:
    return 1 + max(map(depth, children(node)), default=0)


@given(any_text)
def test_any_text_gives_the_same_sound_tree_every_time(text: str) -> None:
    query = parse(text)
    assert query == parse(text)
    assert (query.tree is None) == (not re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", " ", text).strip())
    found = list(leaves(query.tree))
    assert len({(leaf.text.lower(), leaf.kind, leaf.prefix) for leaf in found}) <= 64
    assert {leaf.text.lower() for leaf in found} == {each.lower() for each in query.words}
    for leaf in found:
        assert leaf.text
        assert leaf.text == leaf.text.strip()
        assert leaf.kind == "phrase" or len(leaf.text.split()) == 1
    for node in every(query.tree) if query.tree else ():
        if isinstance(node, And | Or):
            assert len(node.children) == len(set(node.children)) >= 2
            assert not any(isinstance(child, type(node)) for child in node.children)
        elif isinstance(node, Not):
            assert not isinstance(node.keep, Not)
    if query.plain:
        assert all(isinstance(node, And | Leaf) for node in (every(query.tree) if query.tree else ()))


@given(any_text)
def test_no_word_of_the_text_is_lost(text: str) -> None:
    together = "\n".join(parse(text).words).lower()
    for each in re.findall("[a-z]+", text):
        assert each in together


# Trees in the form that parse() promises: flat, without repetition, no Not in Not.keep.
texts = st.sampled_from(["docker", "a/b.py", "it's", "#123", "50%", "main()", "x_y", "文件", "été", "not"])
leaf_nodes = st.one_of(
    texts.map(word),
    st.sampled_from(["docker", "x_y", "文件"]).map(lambda text: word(text, prefix=True)),
    st.builds(phrase, st.lists(texts, min_size=1, max_size=3).map(" ".join), st.booleans()),
)


def composed(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inner, min_size=2, max_size=4, unique=True).map(tuple)
    return st.one_of(
        several.filter(lambda nodes: not any(isinstance(node, And) for node in nodes)).map(And),
        several.filter(lambda nodes: not any(isinstance(node, Or) for node in nodes)).map(Or),
        st.builds(Not, inner.filter(lambda node: not isinstance(node, Not)), inner),
    )


trees: st.SearchStrategy[Node] = st.recursive(leaf_nodes, composed, max_leaves=12)


def render(node: Node) -> str:
    """The text of a tree, every compound in parentheses."""
    if isinstance(node, Leaf):
        return (f'"{node.text}"' if node.kind == "phrase" else node.text) + "*" * node.prefix
    if isinstance(node, Not):
        return f"({render(node.keep)} NOT {render(node.drop)})"
    return "(" + (" " if isinstance(node, And) else " OR ").join(map(render, node.children)) + ")"


@given(trees)
def test_a_tree_written_out_is_read_back_as_it_was(tree: Node) -> None:
    assert parse(render(tree)).tree == tree


# Expressions as people type them, few parentheses, against a shunting yard that works on sets of words.
WORDS = "abcdef"
operators = st.sampled_from(["", "AND", "OR", "NOT", "AND NOT"])


def chains(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    grouped = st.one_of(st.sampled_from(WORDS).map(lambda letter: [letter]), inner.map(lambda part: ["(", *part, ")"]))
    more = st.lists(st.tuples(operators, grouped), max_size=4)
    return st.builds(
        lambda first, rest: [*first, *(token for op, part in rest for token in [*op.split(), *part])],
        grouped,
        more,
    )


expressions = st.recursive(st.sampled_from(WORDS).map(lambda letter: [letter]), chains, max_leaves=6)


def written(tokens: list[str]) -> str:
    return " ".join(tokens).replace("( ", "(").replace(" )", ")")


def reference(tokens: list[str], document: frozenset[str]) -> bool:
    """Dijkstra's shunting yard over truth values; side by side is AND, AND NOT is NOT."""
    infix: list[str] = []
    for token in tokens:
        if infix and token in (*WORDS, "(") and infix[-1] in (*WORDS, ")"):
            infix.append("AND")
        if token == "NOT" and infix[-1] == "AND":
            infix.pop()
        infix.append(token)
    rank = {"NOT": 3, "AND": 2, "OR": 1, "(": 0}
    values: list[bool] = []
    waiting: list[str] = []

    def apply() -> None:
        right, left = values.pop(), values.pop()
        operator = waiting.pop()
        values.append(
            left and right if operator == "AND" else left or right if operator == "OR" else left and not right
        )

    for token in infix:
        if token in WORDS:
            values.append(token in document)
        elif token == "(":
            waiting.append(token)
        elif token == ")":
            while waiting[-1] != "(":
                apply()
            waiting.pop()
        else:
            while waiting and rank[waiting[-1]] >= rank[token]:
                apply()
            waiting.append(token)
    while waiting:
        apply()
    return values.pop()


def holds(node: Node, document: frozenset[str]) -> bool:
    if isinstance(node, Leaf):
        return node.text in document
    if isinstance(node, Not):
        return holds(node.keep, document) and not holds(node.drop, document)
    return (all if isinstance(node, And) else any)(holds(child, document) for child in node.children)


@given(expressions, st.lists(st.frozensets(st.sampled_from(WORDS)), min_size=1, max_size=12))
def test_operators_agree_with_a_plain_evaluator(tokens: list[str], documents: list[frozenset[str]]) -> None:
    tree = parse(written(tokens)).tree
    assert tree is not None
    for document in documents:
        assert holds(tree, document) == reference(tokens, document), written(tokens)


@given(st.text("aZ09bORANDT", min_size=1, max_size=8))
def test_a_single_word_is_read_like_a_word_among_others(word: str) -> None:
    assert parse(word) == parse(f"{word} ")
