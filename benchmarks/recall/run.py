"""Ask the questions of the labelled set and print recall@1/3/10 by session, recall@10 by message, MRR and time.

    python -m benchmarks.recall.run [--set SET] [--set-aside] [--store URL] [--missed KIND] [--times N] [--by words|meaning|both]
    python -m benchmarks.recall.run --refused [--set-aside]
    python -m benchmarks.recall.run --injected [--set-aside]

Sets: `labelled` (six languages), `dialogues` (long dialogues of two people in English), `speakers` (the same, each message with
the name of who wrote it), `friends` (pairs to whom nearly everything happens once; `unnamed`: without the names of who wrote),
`assistant` (one person's chats with an assistant among many about other things).

One table for words alone, and where a model for search by meaning is installed one for meaning alone and one for both.
`found` is how many questions had any hit: for those without an answer ("no answer" names a person who never spoke of it,
"unanswered" is about what nobody spoke of) it is the rate of false answers. `--times N` repeats every chat under other names,
so that the store is N times as large.

`--refused` asks the questions of unanswerable.tsv, too, and prints for each set which share of them is refused (no hit, or only
weak ones) and which share of right answers (the session is among the first three) is lost so.

`--injected` prints what recall gives to a model by itself: how often the right session and message is among it, how often
something is given where nothing fits (`wrongly`: unanswerable questions, and in the set `work` everyday requests like "push it
to main"), and the tokens spent.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.recall.assistant_chats import assistant_chats
from benchmarks.recall.dialogues import dialogues
from benchmarks.recall.friends import friends
from benchmarks.recall.labelled_set import BETWEEN, Chat, Question, labelled_set, lines
from benchmarks.recall.work import work

SETS = {
    "labelled": labelled_set, "dialogues": dialogues, "speakers": lambda: dialogues(speakers=True),
    "friends": friends, "unnamed": lambda: friends(speakers=False), "assistant": assistant_chats,
}  # fmt: skip
UNANSWERED = ("no answer", "unanswered", "near: ")  # kinds of questions without an answer
LIMIT = 20  # hits asked for, as the program asks for them
HEADS = ("questions", "@1", "@3", "@10", "message@10", "MRR", "found", "ms")


def fill(db: Any, chats: list[Chat], times: int = 1) -> None:
    """Store the chats; the copies of a larger store come from people with other names."""
    for copy in range(times):
        for chat in chats:
            session_id = chat.id if copy == 0 else f"{chat.id}.{copy}"
            db.create_session(session_id, "telegram", started_at=chat.started)
            for number, (role, text) in enumerate(chat.messages):
                said = text if copy == 0 or number else _renamed(text, copy)
                db.append_message(session_id, role, said, timestamp=chat.started + BETWEEN * number)
    db.catch_up()


def _renamed(greeting: str, copy: int) -> str:
    """The greeting of another person: Alice3 for Alice, another second character for a Chinese name."""
    name, _, rest = greeting.partition(":")
    return f"{name}{copy}:{rest}" if name[0] < "\u4e00" else f"{name[0]}{chr(0x5000 + copy)}:{rest}"


def measured(db: Any, question: Question, by: str = "both") -> dict[str, float]:
    """What one question found, as the columns of the table."""
    began = time.process_time()
    hits = db.search_messages(question.text, limit=LIMIT, by=by)
    spent = (time.process_time() - began) * 1000
    sessions = list(dict.fromkeys(hit["session_id"] for hit in hits))
    if question.kind.startswith(("several", "across")):  # the copies of a right session are right, too
        sessions = [session.split(".")[0] for session in sessions]
    places = [place for place, session in enumerate(sessions, 1) if session in question.sessions]
    first = min(places, default=1000)
    out = {"@1": first <= 1, "@3": first <= 3, "@10": first <= 10, "MRR": 1 / first if places else 0.0}
    out |= {"found": bool(hits), "ms": spent}
    if question.message is not None:
        out["message@10"] = question.message in [(hit["session_id"], hit["timestamp"]) for hit in hits[:10]]
    return {name: float(value) for name, value in out.items()}


def table(results: dict[str, list[dict[str, float]]]) -> str:
    """One line a kind of question."""
    lines = ["".join([f"{'':<14}", *(f"{head:>11}" for head in HEADS)])]
    for name, rows in results.items():
        cells = [f"{len(rows):>11}"]
        for head in HEADS[1:]:
            values = sorted(row[head] for row in rows if head in row)
            shown = "–" if not values or (name.startswith(UNANSWERED) and head not in ("found", "ms")) else None
            middle = values[len(values) // 2] if head == "ms" and values else sum(values) / max(1, len(values))
            cells.append(f"{shown or format(middle, '.2f'):>11}")
        lines.append(f"{name:<14}" + "".join(cells))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Fill a store, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall.run", description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=SETS, default="labelled", help="which chats and questions")
    parser.add_argument(
        "--set-aside", action="store_true", help="the questions that are set aside, not those to tune on"
    )
    parser.add_argument("--store", help="an empty PostgreSQL database; a new file unless given")
    parser.add_argument(
        "--missed", help="show the questions of this kind that were not answered by the first three sessions"
    )
    parser.add_argument("--times", type=int, default=1, help="how many times as large the store is")
    parser.add_argument("--refused", action="store_true", help="of every set: unanswerable questions that are refused")
    parser.add_argument("--injected", action="store_true", help="of every set: what recall gives to a model by itself")
    parser.add_argument("--by", choices=("words", "meaning", "both"), action="append", help="only this table")
    options = parser.parse_args(arguments)
    if options.refused:
        refused(options.set_aside, options.by or ["words", "both"])
        return 0
    if options.injected:
        injected(options.set_aside, options.by or ["words", "both"])
        return 0
    chats, questions = SETS[options.set]()

    from hermes_state import SessionDB

    with tempfile.TemporaryDirectory() as folder, SessionDB(db_path=options.store or Path(folder) / "state.db") as db:
        fill(db, chats, options.times)
        print(f"{db.message_count()} messages, {db.session_count()} sessions")
        models = [one["model"] for one in db.meaning_status() if one["installed"]]
        if models and options.by != ["words"]:
            began = time.process_time()
            made = db.index_meaning()
            spent = (time.process_time() - began) * 1000 / max(1, db.message_count())
            print(f"{made} vectors of {', '.join(models)}: {spent:.1f} ms of processor time a message")
            db.search_messages("Is a model loaded before the first question?")
        for by in options.by or (("words", "meaning", "both") if models else ("words",)):
            ask(db, [one for one in questions if one.set_aside == options.set_aside], by, options.missed)
    return 0


def unanswerable(name: str) -> list[Question]:
    """The questions that the chats of a set do not answer."""
    return [Question(text, kind, "", (), None) for of, kind, text in lines("unanswerable.tsv") if of == name]


def refused(set_aside: bool, ways: list[str]) -> None:
    """Print which share of the unanswerable questions is refused, and of the right answers is lost, in each set."""
    from hermes_state import SessionDB

    outcomes: dict[tuple[str, str, str], list[bool]] = defaultdict(list)  # way, row, column
    for name, made in SETS.items():
        chats, questions = made()
        with tempfile.TemporaryDirectory() as folder, SessionDB(db_path=Path(folder) / "state.db") as db:
            fill(db, chats)
            if "both" in ways and any(one["installed"] for one in db.meaning_status()):
                db.index_meaning()
            for way in ways:
                for question in [*questions, *unanswerable(name)]:
                    if question.set_aside != set_aside:
                        continue
                    hits = db.search_messages(question.text, limit=LIMIT, by=way)
                    is_refused = all(hit["confidence"] == "weak" for hit in hits)
                    first = [*dict.fromkeys(hit["session_id"] for hit in hits)][:3]
                    if not question.sessions:
                        column = "refused" if question.language == "" else "hard"
                        rows = [name, "all", *([question.kind] if column == "refused" else [])]
                    elif any(one.split(".")[0] in question.sessions for one in first):
                        column, rows = "lost", [name, "all"]
                    else:
                        continue
                    for row in rows:
                        outcomes[way, row, column].append(is_refused)
    for way in ways:
        print(f"\n{way:<16}{'refused':>11}{'lost':>11}{'hard':>11}   hard: the set's own questions without an answer")
        kinds = {kind for _, kind, _ in lines("unanswerable.tsv")}
        for row in (*SETS, *sorted(kinds), "all"):
            cells = [outcomes.get((way, row, column), []) for column in ("refused", "lost", "hard")]
            shares = [f"{sum(cell) / len(cell):.3f}" if cell else "–" for cell in cells]
            print(f"{row:<16}" + "".join(f"{share:>11}" for share in shares))


def injected(set_aside: bool, ways: list[str]) -> None:
    """Print what recall gives to the model, of each set: the right session and message, or something where nothing fits."""
    from hermes.agent.recall import recall
    from hermes.texts import text_tokens
    from hermes_state import SessionDB

    heads = ("questions", "something", "session", "message", "wrongly", "tokens", "ms")
    for way in ways:
        print(f"\n{way:<16}" + "".join(f"{head:>11}" for head in heads))
        for name, made in {**SETS, "work": work}.items():
            chats, questions = made()
            cells: dict[str, list[float]] = defaultdict(list)
            with tempfile.TemporaryDirectory() as folder, SessionDB(db_path=Path(folder) / "state.db") as db:
                fill(db, chats)
                if way == "both" and any(one["installed"] for one in db.meaning_status()):
                    db.index_meaning()
                    recall(db, "Is a model loaded before the first question?", current=None)
                for question in [*questions, *unanswerable(name)]:
                    if question.set_aside != set_aside and name != "work":
                        continue
                    began = time.process_time()
                    found = recall(db, question.text, current=None)
                    cells["ms"].append((time.process_time() - began) * 1000)
                    passages = found.passages if found else ()
                    if not question.sessions:
                        cells["wrongly"].append(bool(passages))
                        continue
                    cells["questions"].append(1)
                    cells["something"].append(bool(passages))
                    cells["tokens"].append(text_tokens(found.prompt_text) if found else 0)
                    cells["session"].append(any(one.session_id.split(".")[0] in question.sessions for one in passages))
                    if question.message is not None:
                        cells["message"].append(question.message in [(one.session_id, one.when) for one in passages])
            shown = [f"{len(cells['questions'])}", *(_mean(cells[head]) for head in heads[1:])]
            print(f"{name:<16}" + "".join(f"{cell:>11}" for cell in shown))


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else "–"


def ask(db: Any, questions: list[Question], by: str, missed: str | None = None) -> None:
    """Print the table of these questions."""
    results: dict[str, list[dict[str, float]]] = defaultdict(list)
    for question in questions:
        row = measured(db, question, by)
        for name in (question.kind, question.language, "all" if question.sessions else ""):
            if name and (question.sessions or name == question.kind):
                results[name].append(row)
        if missed == question.kind and not row["@3"]:
            print(question.text, question.sessions)
    print(f"\n{by}")
    print(table({name: results[name] for name in sorted(results, key=lambda one: (one == "all", len(one) == 2, one))}))


if __name__ == "__main__":
    raise SystemExit(main())
