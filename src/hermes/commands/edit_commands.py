"""Commands that change this session: /title, /tag, /pin, /undo, /retry, /compress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.commands.info_commands import whole_number
from hermes.commands.registry import Host, command
from hermes.errors import InvalidInput, TitleClash
from hermes.texts import content_text, counted, shortened_line

if TYPE_CHECKING:
    from hermes.store.records.rows import MessageRow


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


def _tags_here(host: Host) -> list[str]:
    return host.db.get_tags(host.session_id)


@command("tag", "[words | -word]", "add or remove tags, or list them", complete=_tags_here)
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
    tags = host.db.get_tags(host.session_id)
    host.say(
        "Tags: " + " ".join(f"#{one}" for one in tags) if tags else "This session has no tags. /tag word adds one."
    )


@command("pin", "[off]", "protect this session from pruning; off: unpin it", complete=lambda host: ["off"])
def pin(host: Host, arguments: str) -> None:
    if arguments not in ("", "on", "off"):
        raise InvalidInput(f"expected /pin or /pin off, got {arguments!r}")
    if _exists(host, "pin"):
        host.db.pin_session(host.session_id, arguments != "off")
        host.say(
            "Not pinned any more."
            if arguments == "off"
            else "Pinned: this session is never pruned. /pin off unpins it."
        )


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
    from hermes.agent.tools.file_access import changes_in, put_back

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
    from hermes.agent.recall.history_text import SUMMARY_MARK

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
            host.db, old, model, host.config, focus=arguments or None, room=host.agent.room(),
            window=host.model.context_length, shrink=True, cancelled=cancelled, lease=host.agent.lease,
        )  # fmt: skip
    host.follow(new)
    name = host.db.get_session_title(new)
    host.say(
        f"Compressed. The conversation continues as {new}" + (f' ("{name}")' if name else "") + ".\n"
        f"Nothing was deleted: all messages stay in {old}, and search finds them."
    )
