"""SQL given to a database client: DROP, TRUNCATE and DELETE, in arguments, here-documents, files and pipes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from hermes.agent.tools.danger.place import Place
from hermes.agent.tools.danger.shell_words import Simple, Word

CLIENTS: Final = frozenset(
    "psql mysql mariadb sqlite3 sqlite duckdb sqlcmd sqlplus usql pgcli mycli litecli cockroach clickhouse"
    " clickhouse-client snowsql bq cqlsh mysqladmin".split()
)
_WORDS: Final = re.compile(r"\b(drop|truncate|delete)\b", re.I)
_SHELL: Final = re.compile(r"^\s*\.(shell|system)\b|\\!", re.M)  # the client's own command to start a program


def sql(name: str, words: Sequence[Word], command: Simple | None, place: Place) -> str | None:
    """Why this client's SQL needs confirmation."""
    texts = [word.text for word in words] + [word.text[2:] for word in words if word.text.startswith("-")]
    unseen = f"which SQL {name} would run can't be seen beforehand"
    if any(word.open and word.leading and _follows_command(words, at) for at, word in enumerate(words)):
        return unseen
    for at, word in enumerate(words):
        if (at and words[at - 1].text in ("-f", "--file", "-init", ".read")) or word.text.startswith("--file="):
            content = place.content(_behind_equals(word))
            if content is None:
                return unseen
            texts.append(content)
    if command is not None:
        for redirect in command.redirects:
            if redirect.body is not None:
                texts.append(redirect.body)
            elif redirect.operator == "<":
                content = place.content(redirect.target)
                if content is None:
                    return unseen
                texts.append(content)
        for upstream in command.upstream or ():
            if not _only_says(upstream):
                return unseen
            texts += [word.text for word in upstream.words]
            texts += [redirect.body or "" for redirect in upstream.redirects]
    return next(filter(None, (_verdict(name, text) for text in texts)), None)


def _verdict(name: str, text: str) -> str | None:
    found = _WORDS.search(text)
    if found:
        return f"{name} would run {found[1].upper()}"
    return f"{name} would start a program" if _SHELL.search(text) else None


def _follows_command(words: Sequence[Word], at: int) -> bool:
    return at > 0 and words[at - 1].text in ("-c", "-e", "--command", "--execute", "-cmd", "-q", "--query")


def _behind_equals(word: Word) -> Word:
    return Word(word.text.removeprefix("--file="), known=word.known, glob=word.glob, tilde=word.tilde)


def _only_says(command: Simple) -> bool:
    """Whether this command's output is known from its words."""
    name = command.words[0].text if command.words else ""
    if name in ("echo", "printf"):
        return not any(word.open for word in command.words)
    return name == "cat" and len(command.words) == 1 and any(r.body is not None for r in command.redirects)
