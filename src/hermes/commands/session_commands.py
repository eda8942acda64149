"""Commands that switch to another session: /new, /resume, /branch, /stop, /quit."""

from __future__ import annotations

from hermes.commands.info_commands import recent, session_lines
from hermes.commands.registry import GATEWAY, NOT_IN_EDITORS, TERMINAL, TERMINAL_ONLY, Host, command
from hermes.commands.session_choice import continued, find, message_count
from hermes.errors import InvalidInput
from hermes.store.records.titles import MAX_TITLE
from hermes.texts import content_text, counted, shortened_line

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
    """The name of the conversation, and its last reply."""
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
        from hermes.interop.other_programs import newest

        return continued(host.db, newest(host.db, words[1:], host.agent.cwd))
    found = find(host.db, words, visible_to=host.user, resuming=True)
    if found.session_id is not None:
        return continued(host.db, found.session_id)
    if found.candidates:
        width = max(len(one) for one in found.candidates) if host.where == TERMINAL else 0
        lines = [f"{_quoted(host, one):<{width}}  {host.db.get_session_title(one) or '—'}" for one in found.candidates]
        lines += ["… and more"] if found.more else []
        host.say(f"Several sessions match {words}; type more of an id or a title:\n" + "\n".join(lines))
        return None
    hint = ", ".join(f'"{title}"' for title in found.suggestions)
    host.say(
        f'No session is called "{shortened_line(words, 60)}"; '
        + (f"did you mean {hint}?" if hint else "/sessions lists them.")
    )
    return None


def _quoted(host: Host, session_id: str) -> str:
    """An id as a list shows it."""
    return session_id if host.where == TERMINAL else f"- `{session_id}`"


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
    number = arguments.lstrip("#")
    if number and not (number.isascii() and number.isdigit() and len(number) < 19):
        raise InvalidInput(f"{arguments!r} is not a message number; /history shows the numbers")
    from hermes.agent.conversations import new_session_id

    name = _branch_title(host, row["title"]) if row["title"] else None
    made_id = new_session_id(gateway=host.where == GATEWAY)
    made = host.db.branch_session(old, made_id, at_message=int(number) if number else None, title=name)
    host.switch(made, ending=BRANCHED)
    host.say(f"This is a branch now; the original is unchanged: /resume {old}")


def _branch_title(host: Host, title: str) -> str:
    suffix = " (branch)"
    base = title if title.endswith(suffix) else title[: MAX_TITLE - len(suffix)].rstrip() + suffix
    from hermes.agent.titler import free_title

    return free_title(host.db, host.session_id, base, host.user)


@command("stop", "", "stop the agent and its background processes")
def stop(host: Host, arguments: str) -> None:
    from hermes.agent.tools.processes import background

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
