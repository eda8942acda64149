"""Conversations as documents to read, print and keep: Markdown and HTML. They can't be imported; JSONL can.

In Markdown a session is a heading, each message a smaller one; tool calls and results stand in fences that nothing inside can
close. HTML is one page that needs nothing else, light or dark as the reader's screen is: nothing from a message becomes markup
but what Markdown makes of a reply, the page's own policy forbids scripts and anything from elsewhere, and pictures lie in the
page itself.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hermes.interop.formats import Export
from hermes.interop.json_reading import encoded
from hermes.store.records.attachments import Read, references
from hermes.store.records.sessions import described_event, interleaved
from hermes.store.text.index_text import plain_content
from hermes.texts import one_line, shortened, unfinished
from hermes.times import clock

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

    from hermes.store.records.rows import ExportedSession, MessageRow, SessionEvent, SessionRow

_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'\">\n"
    '<meta name="referrer" content="no-referrer">\n'
)
_BACKTICKS = re.compile("`{3,}")
_BLANK = re.compile(r"\n[ \t]*\n")
_MARKDOWN_UP_TO = 200_000  # characters; a longer reply is shown as it came
_NOTHING = "\ufffd"
_KINDS = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"))


def calls_of(message: MessageRow) -> Iterator[tuple[str, str]]:
    """(name, arguments as JSON text) of each tool call."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else [calls] if isinstance(calls, dict) else []:
        if isinstance(call, dict):
            inner = call.get("function")
            function = inner if isinstance(inner, dict) else call
            arguments = function.get("arguments", function.get("input"))
            text = arguments if isinstance(arguments, str) else encoded(arguments).decode() if arguments else ""
            yield str(function.get("name") or "tool"), text


def fenced(text: str, language: str = "") -> str:
    """Text in a fence longer than any run of backticks inside."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def write_markdown(export: Export) -> Iterator[bytes]:
    """Exported sessions as Markdown, one after the other."""
    first, zone = True, export.zone
    for session in export.sessions:
        text = "" if first else "\n---\n\n"
        first = False
        yield (text + _heading(session, zone)).encode("utf-8", "replace")
        for is_event, item in interleaved(session.get("messages") or [], session.get("events") or []):
            yield (_event_text(item, zone) if is_event else _message_text(item, zone)).encode("utf-8", "replace")


def _heading(session: ExportedSession, zone: tzinfo | None) -> str:
    facts = {
        "Session": f"`{session['id']}`",
        "Source": session.get("source"),
        "Model": session.get("model"),
        "Began": clock(session.get("started_at"), zone, unknown=""),
        "Ended": clock(session.get("ended_at"), zone, unknown=""),
        "Continues": session.get("parent_session_id") and f"`{session['parent_session_id']}`",
        "Tags": ", ".join(map(str, session.get("tags") or [])),
    }
    lines = [f"# {one_line(str(session.get('title') or session['id']))}", ""]
    lines += [f"- {name}: {one_line(str(value))}" for name, value in facts.items() if value]
    return "\n".join(lines) + "\n"


def _event_text(event: SessionEvent, zone: tzinfo | None) -> str:
    when = clock(event["at"], zone, unknown="")
    return f"\n## Event · {when}\n\n{fenced(described_event(event))}\n"


def _message_text(message: MessageRow, zone: tzinfo | None) -> str:
    role = str(message.get("role") or "unknown")
    name = f"{role.capitalize()} {message['tool_name']}" if message.get("tool_name") else role.capitalize()
    when = clock(message.get("timestamp"), zone, unknown="")
    parts = [f"## {one_line(name)}" + (f" · {when}" if when else "")]
    text = plain_content(message.get("content"))
    if text.strip():
        parts.append(fenced(text) if role == "tool" else text.strip("\n"))
    if cut_off := unfinished(message):
        parts.append(f"*({cut_off})*")
    parts += [f"Calls `{one_line(tool)}`:\n\n{fenced(arguments, 'json')}" for tool, arguments in calls_of(message)]
    return "\n" + "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------------ HTML


def write_html(export: Export) -> Iterator[bytes]:
    """Exported sessions as one page, piece by piece; the contents are a list at the top."""
    title, zone = export.title, export.zone
    style = resources.files("hermes.interop").joinpath("page.css").read_text("utf-8")
    yield f"{_HEAD}<title>{_safe(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n".encode()
    opening = f"<nav>\n<h1>{_safe(title)}</h1>\n<ol>\n"
    names: dict[str, str] = {}  # of the sessions in this page
    for row in export.contents:
        yield _out(opening + _entry(row, zone))
        opening = ""
        names[row["id"]] = row.get("title") or row.get("preview") or row["id"]
    if not opening:
        yield b"</ol>\n</nav>\n"
    for session in export.sessions:
        yield _out(_session_head(session, zone, names))
        for is_event, item in interleaved(session.get("messages") or [], session.get("events") or []):
            yield _out(_event(item, zone) if is_event else _message(item, zone, export.attachments))
        yield b"</section>\n"
    yield b"</main>\n</body>\n</html>\n"


def _out(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _safe(value: Any) -> str:
    """Escaped; a NUL has no place in a page."""
    return escape(str(value).replace("\0", _NOTHING), quote=True)


def _entry(row: SessionRow, zone: tzinfo | None) -> str:
    """A line of the contents."""
    name = row.get("title") or row.get("preview") or row["id"]
    when = clock(row.get("started_at"), zone, unknown="")[:10]
    return f'<li><a href="#{_safe(quote(row["id"]))}" dir="auto">{_safe(name)}</a> <small>{when}</small></li>\n'


def _session_head(session: ExportedSession, zone: tzinfo | None, names: Mapping[str, str]) -> str:
    when = clock(session.get("started_at"), zone, unknown="")
    facts = [session["id"], session.get("source"), session.get("model"), when]
    about = [_safe(fact) for fact in facts if fact]
    if session.get("parent_session_id"):
        how = {"branch": "branched from", "reset": "follows"}.get(str(session.get("kind")), "continues")
        about.append(f"{how} {_link(str(session['parent_session_id']), names)}")
    about += [_safe(f"#{tag}") for tag in session.get("tags") or []]
    name = session.get("title") or session["id"]
    line = " · ".join(about)
    return f'<section id="{_safe(session["id"])}">\n<h1 dir="auto">{_safe(name)}</h1>\n<p class="about">{line}</p>\n'


def _link(session_id: str, names: Mapping[str, str]) -> str:
    """A session as a link, if it is in this page; else its id."""
    if session_id not in names:
        return _safe(session_id)
    return f'<a href="#{_safe(quote(session_id))}" dir="auto">{_safe(names[session_id])}</a>'


def _event(event: SessionEvent, zone: tzinfo | None) -> str:
    when, text = _safe(clock(event["at"], zone, unknown="")), _safe(described_event(event))
    return f'<article class="other"><header><b>event</b> {when}</header>\n<p dir="auto">{text}</p>\n</article>\n'


def _message(message: MessageRow, zone: tzinfo | None, attachments: Read | None) -> str:
    role = str(message.get("role") or "unknown")
    kind = role if role in ("user", "assistant", "tool", "system") else "other"
    name = f"{role} · {message['tool_name']}" if message.get("tool_name") else role
    body = "".join(_body(message, role, attachments)) or '<p class="nothing">nothing was said</p>\n'
    when = _safe(clock(message.get("timestamp"), zone, unknown=""))
    return f'<article class="{kind}"><header><b>{_safe(name)}</b> {when}</header>\n{body}</article>\n'


def _body(message: MessageRow, role: str, attachments: Read | None) -> Iterator[str]:
    """The parts of a message in the order in which they came about: thoughts, words, pictures, calls."""
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thought:
        yield _folded("<b>reasoning</b>", typed_html(str(thought)))
    text = plain_content(message.get("content"))
    if text.strip():
        if role == "tool":
            yield _folded(_first_line(text), f'<pre class="result" dir="auto">{_safe(text.strip(chr(10)))}</pre>')
        elif role == "system":
            yield _folded(_first_line(text), typed_html(text))
        else:
            yield reply_html(text) if role == "assistant" and len(text) <= _MARKDOWN_UP_TO else typed_html(text)
    if cut_off := unfinished(message):
        yield f'<p class="nothing">✂ {_safe(cut_off)}</p>\n'
    yield from _pictures(message.get("content"), attachments)
    for tool, arguments in calls_of(message):
        about = " ".join(arguments[:160].split()) + ("…" if len(arguments) > 160 else "")
        yield _folded(
            f"calls <b>{_safe(tool)}</b> {_safe(about)}", f'<pre class="result"><code>{_safe(arguments)}</code></pre>'
        )


def _first_line(text: str) -> str:
    """The summary of a folded text: its first line, and the number of further lines."""
    lines = text.strip().split("\n", 1)
    more = text.strip().count("\n")
    shown = lines[0].strip()
    return _safe(shortened(shown, 101)) + (f" <b>+{more:,} line{'s' if more > 1 else ''}</b>" if more else "")


def _folded(summary: str, inside: str) -> str:
    return f'<details><summary dir="auto">{summary}</summary>{inside}</details>\n'


# ------------------------------------------------------------------------------------------------ words


def reply_html(text: str) -> str:
    """A reply: Markdown as HTML. Tags in it stay text, a link is to the web or to nothing, a picture from elsewhere is a link."""
    return f'<div class="said">{_markdown().render(text.replace(chr(0), _NOTHING))}</div>\n'


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    parser.core.ruler.push("direction", _direct)
    parser.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("image", _linked_picture)
    return parser


def _direct(state: StateCore) -> None:
    """Each block runs in the direction of its own words, and code from the left; links send no referrer."""
    for token in state.tokens:
        if token.type in ("fence", "code_block"):
            token.attrSet("dir", "ltr")
        elif token.nesting > 0 and (token.level == 0 or token.tag in ("td", "th")):
            token.attrSet("dir", "auto")
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer")


def _linked_picture(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    source, name = str(tokens[index].attrGet("src") or ""), tokens[index].content or "picture"
    return f'<a href="{_safe(source)}" rel="noopener noreferrer">[{_safe(name)}]</a>'


def typed_html(text: str) -> str:
    """Text as it was typed, spaces and all; each paragraph in the direction of its own words."""
    parts = [part.strip("\n") for part in _BLANK.split(text)]
    return "".join(f'<p class="typed" dir="auto">{_safe(part)}</p>\n' for part in parts if part.strip())


def _pictures(content: Any, read: Read | None) -> Iterator[str]:
    """The pictures among a message's parts; what is no picture is left out."""
    if read is None or not isinstance(content, (list, dict)):
        return
    for digest, _, _ in references(encoded(content).decode()):
        try:
            data = read(digest)
        except OSError:
            continue
        kind = next((name for start, name in _KINDS if data.startswith(start)), None)
        if kind is not None:
            yield f'<img alt="" src="data:image/{kind};base64,{base64.b64encode(data).decode()}">\n'
