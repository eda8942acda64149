"""Commands that change this session: /title, /tag, /pin, /undo, /retry, /compress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.commands.info_commands import whole_number
from hermes.commands.registry import Host, command
from hermes.errors import InvalidInput, TitleClash
from hermes.texts import content_text, counted, shortened_line

if TYPE_CHECKING:
    from hermes.store.rows import MessageRow


@command("title", "[text]", "name this session; without a text: its name")
def title(host: Host, arguments: str) -> None:
    row = host.db.get_session(host.session_id)
    if not arguments:
        name = row["title"] if row else host.pending_title
        host.say(f"Title: {name}" if name else "This session has no title yet: /title some words")
        return
    wanted = host.db.sanitize_title(arguments)
    if wanted is None:
        raise InvalidInput("nothing of this can be seen; a title needs letters, digits or signs")
    holder = host.db.get_session_by_title(wanted)
    if holder is not None and holder["id"] != host.session_id:
        if host.db.get_session(holder["id"], visible_to=host.user) is not None:
            raise TitleClash(f'session {holder["id"]} is called "{wanted}" already; take another title')
        if row is not None:  # whose it is, and that there is one, is not for this user to know
            from hermes.agent.titler import title_apart

            wanted = title_apart(host.db, host.session_id, wanted)
    if row is None:
        host.pending_title = wanted
        host.say(f'Noted: this session is called "{wanted}" from your first message on.')
        return
    host.db.set_session_title(host.session_id, wanted)
    host.say(f'This session is called "{wanted}" now.')


def _tags_here(host: Host) -> list[str]:
    return host.db.get_tags(host.session_id)


@command("tag", "[words | -word]", "add tags, or take one away; alone: show them", complete=_tags_here)
def tag(host: Host, arguments: str) -> None:
    if not _exists(host, "tag"):
        return
    words = arguments.split()
    add = [word.lstrip("#") for word in words if not word.startswith("-")]
    remove = [word.lstrip("-#") for word in words if word.startswith("-")]
    if any(not word for word in (*add, *remove)):
        raise InvalidInput("a tag needs letters: /tag work, /tag -work")
    if add:
        host.db.tag_session(host.session_id, *add)
    if remove:
        host.db.untag_session(host.session_id, *remove)
    tags = host.db.get_tags(host.session_id)
    host.say(
        "Tags: " + " ".join(f"#{one}" for one in tags) if tags else "This session has no tags: /tag word adds one."
    )


@command("pin", "[off]", "never prune this session; off: let go", complete=lambda host: ["off"])
def pin(host: Host, arguments: str) -> None:
    if arguments not in ("", "on", "off"):
        raise InvalidInput(f"/pin or /pin off, not {arguments!r}")
    if _exists(host, "pin"):
        host.db.pin_session(host.session_id, arguments != "off")
        host.say("Not pinned any more." if arguments == "off" else "Pinned: it is never pruned. /pin off lets go.")


def _exists(host: Host, what: str) -> bool:
    if host.db.get_session(host.session_id) is not None:
        return True
    host.say(f"There is nothing to {what} yet: the session begins with your first message.")
    return False


@command(
    "undo",
    "[n | redo]",
    "take back the last n exchanges (1); redo: bring back",
    complete=lambda host: ["redo"],
)
def undo(host: Host, arguments: str) -> None:
    if arguments == "redo":
        back = host.db.unrewind(host.session_id) if host.db.get_session(host.session_id) else 0
        host.say(f"Brought back {counted(back, 'message')}." if back else "There is nothing to bring back.")
        return
    number = whole_number(arguments, "/undo", default=1)
    rows = host.db.get_messages(host.session_id)
    starts = exchanges(rows)
    if not starts:
        host.say("There is nothing to take back yet.")
        return
    number = min(number, len(starts))
    first = starts[-number]
    hidden = host.db.rewind(host.session_id, rows[first - 1]["id"] if first else 0)
    about = shortened_line(content_text(rows[first]["content"]), 60)
    host.say(
        f'Took back {counted(number, "exchange")} ({counted(hidden, "message")}), from "{about}" on.'
        " /undo redo brings it back."
    )


def exchanges(rows: list[MessageRow]) -> list[int]:
    """Where each exchange begins: the places of what the user said (not of a summary of what came before)."""
    return [place for place, row in enumerate(rows) if row["role"] == "user" and not is_summary(row)]


def is_summary(row: MessageRow) -> bool:
    """Whether a message stands for the part of a conversation that was compressed."""
    from hermes.agent.offline.summary import SUMMARY_MARK

    return row["role"] == "user" and content_text(row["content"]).startswith(SUMMARY_MARK)


@command("retry", "", "ask the last question again")
def retry(host: Host, arguments: str) -> None:
    if not exchanges(host.db.get_messages(host.session_id)):
        host.say("There is nothing to ask again yet.")
        return
    host.show(host.agent.retry())


@command("compress", "[focus]", "summarise the middle to save room; deletes nothing")
def compress(host: Host, arguments: str) -> None:
    if not _exists(host, "compress"):
        return
    from hermes.agent.compress import compress as make_summary
    from hermes.agent.model_choice import auxiliary_model

    old = host.session_id
    host.say("Making a summary…")
    model = auxiliary_model(host.config, "compression", host.model)
    with host.agent.at_work(host.stop) as cancelled:
        new = make_summary(host.db, old, model, host.config, focus=arguments or None, cancelled=cancelled)
    host.follow(new)
    name = host.db.get_session_title(new)
    host.say(
        f"Compressed. The conversation goes on as {new}" + (f' ("{name}")' if name else "") + ".\n"
        f"Nothing was deleted: all of it stays in {old}, and is found by searching."
    )
