"""Commands that switch to another session (/new, /resume, /branch, /stop, /quit) or change this one (/title, /tag, /pin, /undo,
/retry, /compress).

`find` looks up the session that a user means. An exact id comes first, then a title, then an id prefix if it is unique. To
resume, a title may be typed in any case or in part, and means the newest of its numbered family ("Bug" continues "Bug #2");
from there the conversation continues at the end of its chain of compressions (`continued`). Every other command acts on the
session with exactly that title.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from hermes.commands.info_commands import message_count, recent, session_lines, whole_number
from hermes.commands.registry import GATEWAY, NOT_IN_EDITORS, TERMINAL, TERMINAL_ONLY, Host, command
from hermes.errors import InvalidInput, TitleClash
from hermes.store.records.titles import MAX_TITLE
from hermes.store.text.index_text import fold
from hermes.texts import content_text, counted, shortened_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import MessageRow
    from hermes.store.records.visibility import User


USER_EXIT = "user_exit"
BRANCHED = "branched"


@command("new", "", "start a new session; this one is kept", NOT_IN_EDITORS)
def new(host: Host, arguments: str) -> None:
    kept = host.db.get_session(host.session_id) is not None
    old = host.session_id
    host.switch(None, ending=USER_EXIT)
    host.say(f"A new session. /resume {old} returns to the previous one." if kept else "A new session.")


@command("clear", "", "clear the screen and start a new session", TERMINAL_ONLY)
def clear(host: Host, arguments: str) -> None:
    host.clear()
    new(host, "")


def _names(host: Host) -> list[str]:
    """Completions of /resume: titles, and ids of sessions without one."""
    return [row["title"] or row["id"] for row in recent(host, 200)]


@command(
    "resume", "[id | title | @program]", "continue another session, or choose one", NOT_IN_EDITORS, complete=_names
)
def resume(host: Host, arguments: str) -> None:
    target = _named(host, arguments) if arguments else _chosen(host)
    if target is None:
        return
    if target == host.session_id:
        host.say("That is the current session.")
        return
    host.switch(target, ending=USER_EXIT)
    if host.where == GATEWAY:  # the terminal shows a recap
        host.say(_arrived(host, target))


def _arrived(host: Host, session_id: str) -> str:
    """The name of a resumed conversation, and its last reply."""
    row = host.db.get_session(session_id)
    if row is None:
        return "This session no longer exists."
    name = f'"{row["title"]}"' if row["title"] else f"`{session_id}`"
    line = f"↻ Continuing {name} ({counted(message_count(host.db, row), 'message')})."
    last = next((one for one in reversed(host.db.get_messages(session_id)) if one["role"] == "assistant"), None)
    text = shortened_line(content_text(last["content"]), 300) if last else ""
    return f"{line} The last reply: {text}" if text else line


def _named(host: Host, words: str) -> str | None:
    if words.startswith("@") and host.where == TERMINAL:
        from hermes.interop.programs import newest

        return continued(host.db, newest(host.db, words[1:], host.agent.cwd))
    found = find(host.db, words, visible_to=host.user, resuming=True)
    if found.session_id is not None:
        return continued(host.db, found.session_id)
    if found.candidates:
        width = max(map(len, found.candidates))
        shown = f"{{:<{width}}}  {{}}" if host.where == TERMINAL else "- `{}` {}"
        lines = [shown.format(one, host.db.get_session_title(one) or "—") for one in found.candidates]
        lines += ["… and more"] if found.more else []
        host.say(f"Several sessions match {words}; type more of an id or a title:\n" + "\n".join(lines))
        return None
    titles = ", ".join(f'"{title}"' for title in found.suggestions)
    hint = f"did you mean {titles}?" if titles else "/sessions lists them."
    host.say(f'No session is called "{shortened_line(words, 60)}"; {hint}')
    return None


def _chosen(host: Host) -> str | None:
    rows = [row for row in recent(host) if row["id"] != host.session_id]
    if not rows:
        host.say("There is no other session yet.")
        return None
    place = host.choose("Which one?", session_lines(host, rows), [f"/resume {row['id']}" for row in rows])
    return None if place is None else continued(host.db, rows[place]["id"])


@command("branch", "[message]", "branch off here, or after that message", NOT_IN_EDITORS)
def branch(host: Host, arguments: str) -> None:
    old = host.session_id
    row = host.db.get_session(old)
    if row is None:
        host.say("There is nothing to branch from yet.")
        return
    number = whole_number(arguments.lstrip("#"), "/branch", default=0)  # /history shows the numbers
    from hermes.agent.conversations import new_session_id

    name = _branch_title(host, row["title"]) if row["title"] else None
    made_id = new_session_id(gateway=host.where == GATEWAY)
    made = host.db.branch_session(old, made_id, at_message=number or None, title=name)
    host.switch(made, ending=BRANCHED)
    host.say(f"This is a branch now; the original is unchanged: /resume {old}")


def _branch_title(host: Host, title: str) -> str:
    suffix = " (branch)"
    base = title if title.endswith(suffix) else title[: MAX_TITLE - len(suffix)].rstrip() + suffix
    from hermes.agent.titler import free_title

    return free_title(host.db, host.session_id, base, host.user)


@command("stop", "", "stop the agent and its background processes")
def stop(host: Host, arguments: str) -> None:
    from hermes.agent.tools.terminal import background

    host.agent.interrupt()
    running = [one for one in background(host.agent.context).processes.values() if one.status is None]
    for one in running:
        one.kill()
    if running:
        host.say(f"Stopped {counted(len(running), 'background process', 'background processes')}.")
    elif host.stopped:
        host.say("Stopped.")
    else:
        hint = "; Ctrl-C stops a reply." if host.where == TERMINAL else ", and nothing is being answered."
        host.say(f"Nothing runs in the background{hint}")


@command("quit", "", "leave; the session is kept", TERMINAL_ONLY)
def quit_(host: Host, arguments: str) -> None:
    host.leave()


@command("title", "[text]", "name this session, or show its name")
def title(host: Host, arguments: str) -> None:
    row = host.db.get_session(host.session_id)
    if not arguments:
        name = row["title"] if row else host.pending_title
        host.say(f"Title: {name}" if name else "This session has no title yet. /title some words sets one.")
        return
    wanted = host.db.sanitize_title(arguments)
    if wanted is None:
        raise InvalidInput("this title has no visible characters; use letters, digits or symbols")
    holder = host.db.get_session_by_title(wanted, visible_to=host.user)
    if holder is not None and holder["id"] != host.session_id:
        raise TitleClash(f'session {holder["id"]} is already called "{wanted}"; choose another title')
    if row is None:
        host.pending_title = wanted
        host.say(f'This session will be called "{wanted}" from your first message on.')
        return
    from hermes.agent.titler import set_chosen_title

    # Where a session that this user may not see has the title, a similar one is given: a refusal would reveal that session.
    name = set_chosen_title(host.db, host.session_id, wanted, host.user, refuse=True)
    host.say(f'This session is now called "{name}".')


@command(
    "tag",
    "[words | -word]",
    "add or remove tags, or list them",
    complete=lambda host: host.db.get_tags(host.session_id),
)
def tag(host: Host, arguments: str) -> None:
    if not _exists(host, "tag"):
        return
    words = arguments.split()
    add = [word.lstrip("#") for word in words if not word.startswith("-")]
    remove = [word.lstrip("-#") for word in words if word.startswith("-")]
    if any(not word for word in (*add, *remove)):
        raise InvalidInput("a tag needs at least one letter: /tag work, /tag -work")
    if add:
        host.db.tag_session(host.session_id, *add)
    if remove:
        host.db.untag_session(host.session_id, *remove)
    tags = " ".join(f"#{one}" for one in host.db.get_tags(host.session_id))
    host.say(f"Tags: {tags}" if tags else "This session has no tags. /tag word adds one.")


@command("pin", "[off]", "protect this session from pruning; off: unpin it", complete=lambda host: ["off"])
def pin(host: Host, arguments: str) -> None:
    if arguments not in ("", "on", "off"):
        raise InvalidInput(f"expected /pin or /pin off, got {arguments!r}")
    if _exists(host, "pin"):
        unpinned = arguments == "off"
        host.db.pin_session(host.session_id, not unpinned)
        host.say("Not pinned any more." if unpinned else "Pinned: this session is never pruned. /pin off unpins it.")


def _exists(host: Host, what: str) -> bool:
    if host.db.get_session(host.session_id) is not None:
        return True
    host.say(f"There is nothing to {what} yet: the session begins with your first message.")
    return False


@command("undo", "[n | redo]", "undo the last n exchanges (1); redo restores them", complete=lambda host: ["redo"])
def undo(host: Host, arguments: str) -> None:
    if arguments == "redo":
        back = host.db.unrewind(host.session_id) if host.db.get_session(host.session_id) else 0
        host.say(f"Restored {counted(back, 'message')}." if back else "There is nothing to restore.")
        return
    number = whole_number(arguments, "/undo", default=1)
    rows = host.db.get_messages(host.session_id)
    starts = exchanges(rows)
    if not starts:
        host.say("There is nothing to undo yet.")
        return
    number = min(number, len(starts))
    first = starts[-number]
    hidden = host.db.rewind(host.session_id, rows[first - 1]["id"] if first else 0)
    about = shortened_line(content_text(rows[first]["content"]), 60)
    host.say(
        f'Undid {counted(number, "exchange")} ({counted(hidden, "message")}), from "{about}" on.'
        " /undo redo restores them."
    )
    _offer_files(host, rows[first:])


def _offer_files(host: Host, undone: list[MessageRow]) -> None:
    """Offer to restore the files that the undone turns changed."""
    from hermes.agent.tools.files import changes_in, put_back

    changes = changes_in(undone) if host.is_owner else []
    if not changes:
        return
    here = host.agent.cwd.resolve()
    shown = {one: str(one.path.relative_to(here) if one.path.is_relative_to(here) else one.path) for one in changes}
    names = ", ".join(shortened_line(name, 60) for name in list(shown.values())[:5]) + " …" * (len(shown) > 5)
    if not host.ask(f"Restore {counted(len(changes), 'file')} ({names})?"):
        host.say("The files stay as they are.")
        return
    for one in changes:
        problem = put_back(host.db, one)
        done = "Removed" if one.was is None else "Restored"
        host.say(f"{done} {shown[one]}." if problem is None else f"Left {shown[one]} alone: {problem}.")


def exchanges(rows: list[MessageRow]) -> list[int]:
    """The positions of the user's messages, which begin each exchange (without summaries of earlier parts)."""
    return [place for place, row in enumerate(rows) if row["role"] == "user" and not is_summary(row)]


def is_summary(row: MessageRow) -> bool:
    """Whether a message is the summary of a compressed part of a conversation."""
    from hermes.agent.history import SUMMARY_MARK

    return row["role"] == "user" and content_text(row["content"]).startswith(SUMMARY_MARK)


@command("retry", "", "answer your last message again")
def retry(host: Host, arguments: str) -> None:
    if not exchanges(host.db.get_messages(host.session_id)):
        host.say("There is nothing to answer again yet.")
        return
    host.show(host.agent.retry())


@command("compress", "[focus]", "summarise the middle of the conversation; nothing is deleted")
def compress(host: Host, arguments: str) -> None:
    if not _exists(host, "compress"):
        return
    from hermes.agent.compress import compress as make_summary
    from hermes.agent.models.choice import auxiliary_model

    old = host.session_id
    host.say("Compressing the conversation…")
    model = auxiliary_model(host.config, "compression", host.model)
    with host.agent.at_work(host.stop) as cancelled:
        new = make_summary(
            host.db, old, model, host.config, focus=arguments or None, room=host.agent.room.tokens(),
            window=host.model.context_length, shrink=True, cancelled=cancelled, lease=host.agent.lease,
        )  # fmt: skip
    host.follow(new)
    name = host.db.get_session_title(new)
    host.say(
        f"Compressed. The conversation continues as {new}" + (f' ("{name}")' if name else "") + ".\n"
        f"Nothing was deleted: all messages stay in {old}, and search finds them."
    )


# ------------------------------------------------------------------------------------------ finding a session


_SHOWN = 10  # candidates


@dataclass(slots=True, frozen=True)
class ChosenSession:
    """The session that was found, or else the candidates, or similar titles."""

    session_id: str | None
    candidates: tuple[str, ...] = ()
    more: bool = False  # there are more candidates than these
    suggestions: tuple[str, ...] = ()


def find(db: SessionDB, words: str, *, visible_to: User | None = None, resuming: bool = False) -> ChosenSession:
    """Look a session up by id, title or id prefix; `resuming`: by the title as people type it."""
    if words and db.get_session(words, visible_to=visible_to) is not None:
        return ChosenSession(words)
    titled = db.sessions_meant_by_title(words, visible_to=visible_to) if resuming else _titled(db, words, visible_to)
    if len(titled) == 1:
        return ChosenSession(titled[0])
    candidates = db.session_ids_with_prefix(words, _SHOWN + 1, visible_to=visible_to) if words else []
    if len(candidates) == 1:
        return ChosenSession(candidates[0])
    if candidates := titled or candidates:
        return ChosenSession(None, candidates=tuple(candidates[:_SHOWN]), more=len(candidates) > _SHOWN)
    return ChosenSession(None, suggestions=tuple(_alike(db, words, visible_to)))


def _titled(db: SessionDB, words: str, visible_to: User | None) -> list[str]:
    """The session with exactly this title, as a title is stored."""
    try:
        title = db.sanitize_title(words)
    except ValueError:  # too long for any title
        return []
    row = db.get_session_by_title(title, visible_to=visible_to) if title else None
    return [] if row is None else [row["id"]]


def _alike(db: SessionDB, words: str, visible_to: User | None) -> list[str]:
    rows = db.list_sessions_rich(limit=500, order_by_last_active=True, visible_to=visible_to)
    titles = [title for row in rows if (title := row["title"])]
    folded = {fold(title): title for title in titles}
    close = [folded[name] for name in get_close_matches(fold(words), list(folded), n=3, cutoff=0.4)]
    close += [title for title in titles if words and fold(words) in fold(title) and title not in close]
    return close[:3]


def continued(db: SessionDB, session_id: str) -> str:
    """The session that continues another one: the end of its chain of compressions, or the first after it with messages."""
    tip = db.get_compression_tip(session_id)
    return db.get_compression_tip(db.resolve_resume_session_id(tip))
