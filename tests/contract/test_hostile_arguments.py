"""Every public method with hostile values for each argument: an error of our own tree comes out, or a defined result."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import HermesError, StoreClosed, StoreError
from hermes_state import SessionDB
from tests.support.sizes import size

HOSTILE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "bytes": lambda: b"x",
    "bytes that are no text": lambda: b"\xff",
    "lone surrogate": lambda: "a\ud800",
    "NUL": lambda: "a\0b",
    "empty": lambda: "",
    "text": lambda: "%_*'\"",
    "long text": lambda: "x" * 100_000,
    "true": lambda: True,
    "minus one": lambda: -1,
    "fraction": lambda: 1.5,
    "beyond 64 bits": lambda: 2**63,
    "no float": lambda: 10**400,
    "unprintable": lambda: 10**5000,
    "nan": lambda: math.nan,
    "infinity": lambda: math.inf,
    "minus infinity": lambda: -math.inf,
    "object": object,
    "list": list,
    "list of None": lambda: [None],
    "list of lists": lambda: [["a", ["b"]]],
    "list of surrogates": lambda: ["a\ud800", "b\0"],
    "list of objects": lambda: [object()],
    "dict": dict,
    "dict of odd things": lambda: {None: object(), "id": b"x"},
    "tuple of None": lambda: (None, None),
    "tuple of surrogates": lambda: ("a\ud800", "b\0"),
    "triple": lambda: ("session:s", "x", None),
    "set": lambda: {1, "a"},
    "path with a NUL": lambda: Path("a\0b"),
    "a path that is none": lambda: Path("a\ud800"),
    "class": lambda: int,
    "range": lambda: range(3),
}
# These take long, or end the store for the calls that follow.
LEFT_OUT = {"close", "rebuild", "repair", "check", "vacuum", "index_meaning", "meaning_status", "mro"}
OF_FILES = {"backup", "import_database", "shred_session"}  # a path may be a folder, too long, or lead nowhere
GOOD: dict[str, Any] = {
    "session_id": "s", "source": "cli", "role": "user", "query": "SELECT 1", "title": "a title", "base_title": "a title",
    "new_session_id": "new", "message_id": 1, "messages": [{"role": "user", "content": "x"}], "session_ids": ["s"],
    "content": "some words", "data": b"data", "key": "k", "value": "v", "holder": "me", "name": "lease", "token": 1,
    "platform": "telegram", "error": "it broke", "kind": None, "text": "words", "words": "words", "old": "/old", "new": "/new",
    "conversation": "s", "model": "m", "action": "acted", "by": "me", "held": [], "exported": [], "summary": "short",
    "end_reason": "done", "user_id": "7", "tags": "tag", "message": {"role": "user", "content": "x"}, "prefix": "s",
    "session_id_or_prefix": "s", "digest": "0" * 64, "system_prompt": "be kind", "path": "a-file-of-another-name.db",
    "message_ids": [1], "limit": 3,
}  # fmt: skip


def methods() -> Iterator[tuple[str, inspect.Signature]]:
    for name in sorted(dir(SessionDB)):
        member = inspect.getattr_static(SessionDB, name)
        is_call = callable(getattr(SessionDB, name)) and not isinstance(member, property)
        if is_call and not name.startswith("_") and name not in LEFT_OUT:
            yield name, inspect.signature(getattr(SessionDB, name))


CALLS = [
    (name, parameter.name, hostile)
    for name, signature in methods()
    for parameter in signature.parameters.values()
    if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    for hostile in HOSTILE
    if (parameter.name, hostile) != ("progress", "class")  # a call of that class, which fails as it does
]


def called(db: Any, name: str, parameter: str | None, hostile: Any) -> None:
    """Call a method with one hostile argument; what it gives lazily is asked for, too."""
    positional, named = [], {}
    for one in inspect.signature(getattr(SessionDB, name)).parameters.values():
        if one.name == "self" or one.kind is one.VAR_KEYWORD:
            continue
        if one.name == parameter:
            value = hostile
        elif one.default is one.empty:
            value = GOOD[one.name] if name != "record_event" or one.name != "kind" else "model_error"
        else:
            continue
        if one.kind is one.VAR_POSITIONAL:
            positional.append(value)
        elif one.kind is one.KEYWORD_ONLY or one.default is not one.empty:
            named[one.name] = value
        else:
            positional.append(value)
    result = getattr(db, name)(*positional, **named)
    if isinstance(result, AbstractContextManager):
        with result:
            db.create_session("new", "cli")
    elif isinstance(result, Iterator):
        list(result)


def escape(
    db: Any, name: str, parameter: str | None, hostile: Any, allowed: type[Exception] = HermesError
) -> list[str]:
    """The unexpected outcome of a call as one line; an empty list if there is none."""
    try:
        called(db, name, parameter, hostile)
    except HermesError as error:
        by_the_database = type(error) is StoreError and name not in OF_FILES
        if not by_the_database and str(error) and "\n" not in str(error):
            return []
        return [f"{name}({parameter}: {type(hostile).__name__}): {error!r:.200}"]
    except Exception as error:  # what is looked for
        return [f"{name}({parameter}: {type(hostile).__name__}): {error!r:.200}"]
    return []


@pytest.mark.filterwarnings("ignore:the transcript of session .* could not be written")  # of one that has such an id
def test_only_errors_of_our_own_come_out(db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: list[str] = []
    for name, parameter, hostile in random.Random(7).sample(CALLS, size(1500, len(CALLS))):
        db.restore_session("s")
        db.ensure_session("s", "cli")
        db.delete_session("new")
        found += escape(db, name, parameter, HOSTILE[hostile]())
    assert not found, "\n".join([str(len(found)), *found])
    values = {name: hostile() for name, hostile in HOSTILE.items()}
    assert [
        name for name, value in values.items() if not isinstance(value, str) and value in db
    ] == []  # a text is an id
    db.delete_session("s")
    assert db.check() == []


@pytest.mark.parametrize("parameter", [name for name in inspect.signature(SessionDB).parameters if name != "url"])
def test_a_store_is_not_opened_with_hostile_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameter: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, hostile in HOSTILE.items():
        try:
            SessionDB(**{"db_path": tmp_path / "state.db", parameter: hostile()}).close()
        except HermesError:
            pass
        except Exception as error:
            pytest.fail(f"{parameter}={name}: {error!r}")


def test_a_closed_store_says_so(make_db: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    db = make_db()
    db.create_session("s", "cli")
    db.close()
    without_a_database = set("fenced masked maybe_auto_prune_and_vacuum sanitize_title size import_database".split())
    for name in [name for name, _ in methods() if name not in without_a_database]:
        with pytest.raises(StoreClosed):
            called(db, name, None, None)
    for call in (db.check, db.repair, db.vacuum, db.meaning_status):
        with pytest.raises(StoreClosed):
            call()
    with pytest.raises(StoreClosed):
        assert "s" in db
    assert db.maybe_auto_prune_and_vacuum()["error"]
    db.close()


@pytest.mark.parametrize(
    "own", [LookupError("no place"), OSError(5, "no place", "/a/file"), ValueError("no place")], ids=repr
)
def test_an_error_of_what_the_caller_gave_comes_out_as_it_is(db: Any, own: Exception) -> None:
    def fails(*_: Any) -> Iterator[Any]:
        yield {"id": "s", "source": "cli", "started_at": 1.0, "messages": []}
        raise own

    with pytest.raises(type(own)) as raised:
        db.import_sessions(fails())
    assert raised.value is own and db.session_count() == 1
