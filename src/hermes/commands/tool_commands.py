"""Commands about a reply and the tools of the agent: /copy, /show, /allowed.

/copy puts text into the clipboard of the terminal (OSC 52).
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from hermes.commands.info_commands import LISTED, whole_number
from hermes.commands.registry import TERMINAL_ONLY, Host, command
from hermes.errors import InvalidInput
from hermes.texts import content_text, counted, one_line, shortened_line

if TYPE_CHECKING:
    from hermes.config.settings_schema import PermissionRule
    from hermes.store.records.rows import MessageRow


@command(
    "show", "[n | list]", "show all output of a tool call (the last)", TERMINAL_ONLY, complete=lambda host: ["list"]
)
def show(host: Host, arguments: str) -> None:
    rows = host.db.get_messages(host.session_id, visible_to=host.user)
    results = [row for row in rows if row["role"] == "tool"]
    if not results:
        host.say("No tools have been used in this conversation yet.")
        return
    calls = _calls(rows)
    if arguments == "list":
        host.say("\n".join(_listed(calls, row, number) for number, row in enumerate(reversed(results[-LISTED:]), 1)))
        return
    number = whole_number(arguments, "/show", default=1)
    if number > len(results):
        host.say(f"This conversation has only {counted(len(results), 'tool call')}.")
        return
    row = results[-number]
    host.say(f"{_about(calls, row, 1000)}\n{_output(host, calls, row) or '(no output)'}")


def _output(host: Host, calls: dict[str, dict[str, Any]], row: MessageRow) -> str:
    """The whole output of a call; of a changed file the diff, which is not part of the message."""
    from hermes.agent.tools.file_access import TOOLS, without_note
    from hermes.agent.tools.file_tools import diff_of_call

    text = content_text(row["content"]).rstrip()
    if row["tool_name"] not in TOOLS:
        return text
    arguments = _arguments(calls.get(str(row["tool_call_id"]), {}))
    diff = diff_of_call(host.db, row["tool_name"], arguments, row)
    return "\n".join(part for part in (without_note(text).rstrip(), diff) if part)


def _calls(rows: list[MessageRow]) -> dict[str, dict[str, Any]]:
    """The functions that were called, by the id of the call."""
    made = {}
    for row in rows:
        for call in row["tool_calls"] if isinstance(row["tool_calls"], list) else ():
            if isinstance(call, dict) and isinstance(call.get("function"), dict):
                made[str(call.get("id"))] = call["function"]
    return made


def _arguments(function: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _about(calls: dict[str, dict[str, Any]], row: MessageRow, room: int) -> str:
    """`terminal: ls -l`: a tool's name and its arguments."""
    function = calls.get(str(row["tool_call_id"]), {})
    name = str(row["tool_name"] or function.get("name") or "tool")
    arguments = _arguments(function)
    values = [arguments["path"]] if name in ("write_file", "edit_file") and "path" in arguments else arguments.values()
    return shortened_line(f"{name}: {' '.join(value for value in values if isinstance(value, str))}".rstrip(": "), room)


def _listed(calls: dict[str, dict[str, Any]], row: MessageRow, number: int) -> str:
    lines = content_text(row["content"]).rstrip().count("\n") + 1
    return f"{number:>3}  {_about(calls, row, 60)}  ({counted(lines, 'line')})"


@command("allowed", "[remove n]", "list or remove permission rules", TERMINAL_ONLY, complete=lambda host: ["remove"])
def allowed(host: Host, arguments: str) -> None:
    found = host.config.permissions
    rules = [("allow", rule) for rule in found.allow] + [("deny", rule) for rule in found.deny]
    if not arguments:
        lines = [f"{number:>3}  {_rule(kind, rule)}" for number, (kind, rule) in enumerate(rules, 1)]
        nothing = "No rules yet: every command that is not known to be read-only asks first."
        host.say("\n".join(lines) if lines else nothing)
        return
    word, _, number = arguments.partition(" ")
    chosen = whole_number(number.strip(), "/allowed remove", default=0) if word == "remove" else 0
    if not 1 <= chosen <= len(rules):
        raise InvalidInput("remove which rule? /allowed lists them, /allowed remove 1 removes the first")
    from hermes.config.editing import change_list

    kind, rule = rules[chosen - 1]
    kept = rule if isinstance(rule, str) else {"command": rule.command, "folder": str(rule.folder)}
    change_list(["permissions", kind], remove=kept)
    (found.allow if kind == "allow" else found.deny).remove(rule)
    host.say(f"Removed: {_rule(kind, rule)}")


def _rule(kind: str, rule: str | PermissionRule) -> str:
    command, folder = (rule, None) if isinstance(rule, str) else (rule.command, rule.folder)
    never = "never runs: " if kind == "deny" else ""
    return f"{never}{one_line(command)}  {'everywhere' if folder is None else f'in {folder}'}"


MOST = 74_000  # bytes; terminals ignore longer ones


@command("copy", "[n]", "copy the last code block (or the n-th), else the reply", TERMINAL_ONLY)
def copy(host: Host, arguments: str) -> None:
    rows = host.db.get_messages(host.session_id)
    reply = next((content_text(row["content"]) for row in reversed(rows) if row["role"] == "assistant"), "").strip()
    if not reply:
        raise InvalidInput("there is no reply to copy yet")
    blocks = code_blocks(reply)
    number = whole_number(arguments, "/copy", default=len(blocks) or 1)
    if arguments and number > len(blocks):
        raise InvalidInput(f"the last reply has {counted(len(blocks), 'code block')}")
    text = blocks[number - 1] if blocks else reply
    if len(text.encode()) > MOST:
        raise InvalidInput(f"this is too long for a terminal's clipboard (more than {MOST:,} bytes)")
    sys.stdout.write(f"\x1b]52;c;{b64encode(text.encode()).decode()}\x07")
    sys.stdout.flush()
    what = f"code block {number} of {len(blocks)}" if blocks else "the reply"
    host.say(f"Copied {what}: {counted(text.count(chr(10)) + 1, 'line')}. (The terminal must allow OSC 52.)")


def code_blocks(text: str) -> list[str]:
    """The contents of the fences in a Markdown text, without the fences."""
    from markdown_it import MarkdownIt

    return [token.content.rstrip("\n") for token in MarkdownIt().parse(text) if token.type in ("fence", "code_block")]
