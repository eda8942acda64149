"""`hermes sessions search`: searches messages with the same engine the agent uses; and `hermes why`: the conversations that
made a file or a line, newest first.

Hits are grouped by session, the best session first. A match is coloured on a terminal and stands between `**`
without colour; in a pipe each hit is one line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import (
    file_option,
    find_session,
    flag,
    json_option,
    limit_option,
    model_option,
    moment,
    session_option,
    sessions_of_file,
    source_option,
)
from hermes.cli.output import BOLD, CYAN, DIM, GOLD, cells, colourful, note, pad, print_json, screen_width, styled, wrap
from hermes.cli.record import opened, typed, zone
from hermes.errors import InvalidInput
from hermes.texts import counted, one_line
from hermes.times import ago, clock

if TYPE_CHECKING:
    from hermes.store.records.rows import SearchHit

# The innermost pair: text may hold a `>>>` of its own.
_MATCH = re.compile(">>>((?:(?!>>>).)*?)<<<", re.DOTALL)


@click.command()
@click.argument("query", nargs=-1, required=True)
@limit_option("Show at most N hits.")
@source_option("Only in sessions of this source; may be repeated.", multiple=True)
@click.option(
    "--role", multiple=True, metavar="ROLE", help="Only messages of user, assistant, tool …; may be repeated."
)
@click.option("--since", callback=moment(False), metavar="WHEN", help="From then on: 2026-01-31, 7d, yesterday.")
@click.option("--until", callback=moment(True), metavar="WHEN", help="Up to then, that day included.")
@session_option("--session", text="Only in this session (all parts of a compressed one).")
@model_option("Only messages of this model, or sessions with it.")
@click.option("--title", metavar="WORDS", help="Only in sessions whose title has this in it.")
@click.option("--tag", metavar="TAG", help="Only in sessions with this tag.")
@click.option("--tool", metavar="TOOL", help="Only calls and results of this tool.")
@file_option()
@click.option("--user", metavar="USER", help="Only in sessions of this user.")
@json_option("Print the hits as a JSON array, with message ids and what found each; times are seconds since 1970.")
def search(
    query: tuple[str, ...], limit: int, source: tuple[str, ...], role: tuple[str, ...], since: float | None,
    until: float | None, session: str | None, model_name: str | None, title: str | None, tag: str | None, tool: str | None,
    file: str | None, user: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Search the messages.

    Words, "phrases", OR, NOT (-word), prefix*.
    """
    words = typed(" ".join(query))
    if not words.strip():
        raise click.UsageError("nothing to search for: give some words", click.get_current_context())
    with opened() as db:
        within = None if session is None else db.get_compression_chain(find_session(db, session))
        if (changed := sessions_of_file(db, file)) is not None:
            within = changed if within is None else [one for one in within if one in changed]
        hits = db.search_messages(
            words, source_filter=source or None, role_filter=role or None, limit=limit, since=since, until=until,
            session_ids=within, model=model_name, title=title, tag=tag, tool=tool, user_id=user,
        )  # fmt: skip
    if as_json:
        print_json(hits)
    elif hits:
        if all(hit["confidence"] == "weak" for hit in hits):
            from hermes.agent.history import NEAREST

            note(NEAREST)
        elif all(hit["relaxed"] for hit in hits):
            note("no message has all of these words; these come closest")
        shown = screen(hits, colour=colourful())
        if len(hits) == limit:
            shown[-1] += styled(f"; there may be more: --limit {limit * 5}", DIM, on=colourful())
        print("\n".join(shown))
    if not hits:
        note(f"no messages match {one_line(words)!r}" + (f" in messages of role {' or '.join(role)}" if role else ""))
    return 0 if hits else 1


def screen(hits: list[SearchHit], *, colour: bool) -> list[str]:
    """The hits as lines, grouped by session: author, time and snippet of each."""
    by_session: dict[str, list[SearchHit]] = {}
    for hit in hits:
        by_session.setdefault(hit["session_id"], []).append(hit)
    where = zone()
    room = max(9, *(cells(_who(hit)) for hit in hits))
    marked = f"\x1b[{BOLD};{GOLD}m\\1\x1b[0m" if colour else r"**\1**"
    width = screen_width() if sys.stdout.isatty() else 1 << 30
    out: list[str] = []
    for session_id, found in by_session.items():
        newest = max(hit["timestamp"] for hit in found)
        about = f" · {one_line(found[0]['source'])} · {ago(newest, where)} · {session_id}"
        out.append(styled(one_line(found[0]["title"]) or "—", BOLD, on=colour) + styled(about, DIM, on=colour))
        for hit in found:
            head = styled(f"  {pad(_who(hit), room)}", CYAN, on=colour)
            when = styled(f"  {clock(hit['timestamp'], where)}", DIM, on=colour)
            text = _MATCH.sub("\x02\\1\x03", one_line(hit["snippet"]))  # marks without a width, until lines are broken
            lines = [text] if cells(text) + room + 22 <= width else ["", *wrap(text, width - 4)]
            lines = [re.sub("\x02(.+?)\x03", marked, line) for line in lines]
            out.append(f"{head}{when}  " + "\n    ".join(lines).replace("\x02", "").replace("\x03", ""))
        out.append("")
    return [*out, styled(f"{counted(len(hits), 'hit')} in {counted(len(by_session), 'session')}", DIM, on=colour)]


def _who(hit: SearchHit) -> str:
    made = "(built-in)" if hit["own_model"] else ""
    return " ".join(part for part in (one_line(hit["role"]), one_line(hit["tool_name"]), made) if part)


# ------------------------------------------------------------------------------------------------ hermes why


@click.command()
@click.argument("where", metavar="FILE[:LINE[-LINE]]", type=click.Path())
@flag("--tests", "Add the tests that were run after each change, and whether they passed.")
@click.option(
    "--limit", "-n", type=click.IntRange(1), metavar="N", help="At most N changes; default: 20 (200 in JSON)."
)
@json_option("Print one JSON object; times are seconds since 1970.")
def why(where: str, tests: bool, limit: int | None, as_json: bool) -> int:
    """Show which conversation made a file or a line, on whose request, and what the agent said beside it."""
    from hermes import why as changes

    path, lines = changes.parsed(where, Path.cwd())
    with opened() as db:
        try:
            answer = changes.why(db, path, lines, limit=limit or (changes.MOST if as_json else 20), tests=tests)
        except InvalidInput as error:
            raise click.UsageError(str(error)) from error
    if as_json:
        print_json(answer)
    elif answer["changes"]:
        width = screen_width()
        print("\n".join(part for text in changes.described(answer, zone()) for part in wrap(text, width) or [""]))
    if not answer["changes"]:
        note(f"no conversation in the record changed {where}")
    return 0 if answer["changes"] else 1
