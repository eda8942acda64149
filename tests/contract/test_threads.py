"""One SessionDB in many threads, many on one store: nothing lost or doubled, each thread in its order."""

from __future__ import annotations

import threading

from hermes.errors import StoreClosed
from tests.support.sizes import size

from . import contents, found, ids, in_threads, shown, talk

THREADS, EACH = 8, 40


def check_all_there(db, session_id):
    texts = shown(db, session_id)
    assert len(texts) == len(set(texts)) == THREADS * EACH
    for thread in range(THREADS):
        own = [text for text in texts if text.startswith(f"t{thread} ")]
        assert own == [f"t{thread} m{n} gull" for n in range(EACH)]
    row = db.get_session(session_id)
    assert row["message_count"] == db.message_count(session_id) == THREADS * EACH
    assert len(found(db, "gull", limit=1000)) == THREADS * EACH
    assert db.check() == []


def test_eight_threads_append_to_one_store(db):
    db.create_session("s", "cli")

    def writer(thread):
        return [db.append_message("s", "user", f"t{thread} m{n} gull") for n in range(EACH)]

    per_thread = in_threads(*[lambda t=t: writer(t) for t in range(THREADS)])
    for message_ids in per_thread:
        assert message_ids == sorted(message_ids)
    assert sorted(i for message_ids in per_thread for i in message_ids) == sorted(ids(db.get_messages("s")))
    check_all_there(db, "s")
    lines = (db.sessions_dir / "s.jsonl").read_text(encoding="utf-8")
    assert all(f"t{thread} m{n} gull" in lines for thread in range(THREADS) for n in range(EACH))


def test_eight_openers_append_to_one_store(make_db):
    stores = [make_db(name="x", durability="normal") for _ in range(THREADS)]
    stores[0].create_session("s", "cli")

    def writer(thread):
        for n in range(EACH):
            stores[thread].append_message("s", "user", f"t{thread} m{n} gull")

    in_threads(*[lambda t=t: writer(t) for t in range(THREADS)])
    for store in (stores[0], stores[-1]):
        check_all_there(store, "s")


def test_one_title_wanted_by_many_is_given_to_one(make_db):
    stores = [make_db(name="x") for _ in range(4)]
    for n in range(4):
        stores[0].create_session(f"s{n}", "cli")

    def want(n):
        try:
            return stores[n].set_session_title(f"s{n}", "the one")
        except ValueError:
            return False

    assert sorted(in_threads(*[lambda n=n: want(n) for n in range(4)])) == [False, False, False, True]


def test_searching_and_listing_while_others_write_and_delete(db):
    for n in range(20):
        talk(db, f"s{n}", f"a gull {n}", "reply")

    def write():
        for n in range(60):
            talk(db, f"w{n}", f"a gull w{n}")

    def delete():
        return sum(db.delete_session(f"s{n}") for n in range(20))

    def read():
        for _ in range(40):
            for hit in db.search_messages("gull", limit=50):
                assert "gull" in hit["snippet"]
            rows = db.list_sessions_rich(limit=100)
            assert len(rows) == len(set(ids(rows)))

    results = in_threads(write, delete, read, read)
    assert results[1] == 20
    assert len(found(db, "gull", limit=200)) == 60
    assert db.check() == []


def test_replacing_while_reading_never_shows_a_mixture(db):
    versions = [[{"role": "user", "content": f"v{version} line {n}"} for n in range(6)] for version in range(20)]
    db.create_session("s", "cli")
    db.replace_messages("s", versions[0])

    def write():
        for version in versions:
            db.replace_messages("s", version)

    def read():
        for _ in range(100):
            seen = contents(db.get_messages("s"))
            assert len(seen) == 6 and len({text.split()[0] for text in seen}) == 1

    in_threads(write, read, read)


def test_branches_of_a_session_that_is_being_deleted_are_whole_or_refused(db):
    from hermes.errors import HermesError

    for round_ in range(8):
        talk(db, f"p{round_}", "one", "two", "three")

        def branch(round_=round_):
            try:
                return db.branch_session(f"p{round_}", f"b{round_}")
            except HermesError:
                return None

        made, _ = in_threads(branch, lambda round_=round_: db.delete_session(f"p{round_}"))
        if made is not None:
            assert shown(db, made) == ["one", "two", "three"]
        else:
            assert db.get_session(f"b{round_}") is None
    assert db.check() == []


def test_a_store_closed_while_threads_write_has_every_line_after_the_next_opening(make_db):
    def write(db, session_id, begun):
        n = 0
        try:
            while True:
                n += 1
                db.set_session_title(session_id, f"{session_id} {n}")
                db.tag_session(session_id, f"tag{n % 3}")
                db.append_message(session_id, "user", f"{session_id} m{n}", usage={"input_tokens": 1})
                begun.release()
        except StoreClosed:
            return n

    for number in range(size(6, 20)):  # each time a thread is in the middle of a change
        db, begun = make_db(name=f"x{number}"), threading.Semaphore(0)
        sessions = [f"s{number}-{one}" for one in range(THREADS)]
        for session_id in sessions:
            db.create_session(session_id, "cli")

        def close(db=db, begun=begun):
            for _ in range(THREADS):
                begun.acquire()
            db.close()

        in_threads(close, *[lambda db=db, one=one, begun=begun: write(db, one, begun) for one in sessions])
        assert make_db(name=f"x{number}").check() == []


def test_a_system_without_threads_left_stores_each_message_once(db, monkeypatch):
    """A thread that can't be started after the commit is no reason to tell the caller that nothing was stored."""
    db.create_session("s", "cli")

    def refused(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refused)
        numbers = [db.append_message("s", "user", f"gull {number} " + "and more " * 300) for number in range(200)]
    assert ids(db.get_messages("s")) == numbers and len(set(numbers)) == 200
    assert len(found(db, "gull", limit=1000)) == 200
    assert db.check() == []
