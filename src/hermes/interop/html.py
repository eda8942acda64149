"""HTML: one page that needs nothing else, light or dark as the reader's screen is.

Everything from a message is escaped before it becomes part of the page, and the page's own policy forbids scripts and
anything from elsewhere. Pictures lie in the page itself.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from datetime import tzinfo
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hermes.interop.jsonl import encoded
from hermes.interop.markdown import calls_of, moment, text_of
from hermes.store.attachments import references

_STYLE = """
:root { color-scheme: light dark; --page: #fbfaf8; --text: #1f2328; --dim: #6b7280; --line: #e3e0da; --user: #fff3d6;
  --code: #f1efea; --accent: #9a6700; --green: #1a7f37 }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --text: #e4e6ea; --dim: #9aa1ac; --line: #2c3037;
  --user: #33290f; --code: #20242a; --accent: #e3b341; --green: #56d364 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 52rem; padding: 2rem 1.25rem 4rem; background: var(--page); color: var(--text);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 .25rem }
.about { color: var(--dim); font-size: .85rem; margin: 0 0 1.5rem }
nav { margin-bottom: 2.5rem } nav ol { padding-left: 1.5rem } nav small { color: var(--dim) } a { color: inherit }
section { border-top: 2px solid var(--line); padding-top: 1.75rem; margin-top: 2.5rem }
section:first-of-type { border: 0; margin: 0; padding: 0 }
article { margin: 0 0 1.25rem; padding: .1rem 0 .1rem 1rem; border-left: 3px solid var(--green) }
article.user { border-color: var(--accent); background: var(--user); border-radius: 0 .5rem .5rem 0;
  padding: .6rem 1rem }
article.tool, article.system { border-color: var(--line) }
header { font-size: .8rem; color: var(--dim); margin-bottom: .25rem }
header b { color: var(--text) }
.text { white-space: pre-wrap }
pre { background: var(--code); border-radius: .4rem; padding: .75rem 1rem; overflow-x: auto; white-space: pre-wrap;
  margin: .5rem 0 }
code, pre { font: .875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
.text code { background: var(--code); border-radius: .25rem; padding: .1em .3em }
details { margin: .4rem 0 } summary { cursor: pointer; color: var(--dim); font-size: .875rem }
img { max-width: 100%; border-radius: .4rem }
@media print { body { max-width: none } article { break-inside: avoid } }
"""
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
    '<meta name="referrer" content="no-referrer">\n'
)
_FENCE = re.compile(r"^(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_STRONG = re.compile(r"\*\*(?=\S)([^*\n]+?)(?<=\S)\*\*")
_KINDS = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"))


def write(
    sessions: Iterable[dict[str, Any]],
    title: str,
    zone: tzinfo | None = None,
    attachments: Path | None = None,
    contents: Iterable[dict[str, Any]] = (),
) -> Iterator[bytes]:
    """Exported sessions as one page, piece by piece. `attachments` is the store's folder of attachments, `contents` the
    sessions (at least their ids) that a list at the top leads to."""
    yield f"{_HEAD}<title>{_safe(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n".encode()
    opening = f"<nav>\n<h1>{_safe(title)}</h1>\n<ol>\n"
    for row in contents:
        yield _out(opening + _entry(row, zone))
        opening = ""
    if not opening:
        yield b"</ol>\n</nav>\n"
    for session in sessions:
        yield _out(_session_head(session, zone))
        for message in session.get("messages") or []:
            yield _out(_message(message, zone, attachments))
        yield b"</section>\n"
    yield b"</main>\n</body>\n</html>\n"


def _out(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _safe(value: Any) -> str:
    """Escaped; a NUL has no place in a page."""
    return escape(str(value).replace("\0", "\ufffd"), quote=True)


def _entry(row: dict[str, Any], zone: tzinfo | None) -> str:
    """A line of the contents."""
    name = row.get("title") or row.get("preview") or row["id"]
    when = moment(row.get("started_at"), zone)[:10]
    return f'<li><a href="#{_safe(quote(row["id"]))}" dir="auto">{_safe(name)}</a> <small>{when}</small></li>\n'


def _session_head(session: dict[str, Any], zone: tzinfo | None) -> str:
    facts = [session["id"], session.get("source"), session.get("model"), moment(session.get("started_at"), zone)]
    if session.get("parent_session_id"):
        facts.append(f"continues {session['parent_session_id']}")
    facts += [f"#{tag}" for tag in session.get("tags") or []]
    name = session.get("title") or session["id"]
    about = " · ".join(_safe(fact) for fact in facts if fact)
    return f'<section id="{_safe(session["id"])}">\n<h1 dir="auto">{_safe(name)}</h1>\n<p class="about">{about}</p>\n'


def _message(message: dict[str, Any], zone: tzinfo | None, attachments: Path | None) -> str:
    role = str(message.get("role") or "unknown")
    kind = role if role in ("user", "assistant", "tool", "system") else "other"
    name = f"{role} {message['tool_name']}" if message.get("tool_name") else role
    when = moment(message.get("timestamp"), zone)
    text = text_of(message.get("content"))
    body = ""
    if text.strip():
        shown = f"<pre>{_safe(text)}</pre>" if role == "tool" else rendered(text)
        body = _folded(f"{len(text.splitlines())} lines", shown) if role in ("tool", "system") else shown
    body += "".join(_pictures(message.get("content"), attachments))
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thought:
        body = _folded("reasoning", rendered(str(thought))) + body
    for called, given in calls_of(message):
        body += _folded(f"calls {called}", f"<pre>{_safe(given)}</pre>")
    return f'<article class="{kind}"><header><b>{_safe(name)}</b> {_safe(when)}</header>\n{body}</article>\n'


def _folded(summary: str, inside: str) -> str:
    return f"<details><summary>{_safe(summary)}</summary>{inside}</details>\n"


def rendered(text: str) -> str:
    """Text as HTML: fences become blocks, `code` and **strong** are marked, all else stays as it was typed."""
    out, at = [], 0
    for fence in _FENCE.finditer(text):
        out += [_prose(text[at : fence.start()]), f'<pre dir="ltr"><code>{_safe(fence[2].rstrip())}</code></pre>\n']
        at = fence.end()
    return "".join([*out, _prose(text[at:])])


def _prose(text: str) -> str:
    text = text.strip("\n")
    if not text.strip():
        return ""
    marked, at = [], 0
    for code in _CODE.finditer(text):
        marked += [_strong(text[at : code.start()]), f"<code>{_safe(code[1])}</code>"]
        at = code.end()
    return f'<div class="text" dir="auto">{"".join([*marked, _strong(text[at:])])}</div>\n'


def _strong(text: str) -> str:
    return _STRONG.sub(r"<strong>\1</strong>", _safe(text))


def _pictures(content: Any, folder: Path | None) -> Iterator[str]:
    """The pictures among a message's parts; what is no picture is left out."""
    if folder is None or not isinstance(content, (list, dict)):
        return
    for digest, _, _ in references(encoded(content).decode()):
        try:
            data = (folder / digest[:2] / digest).read_bytes()
        except OSError:
            continue
        kind = next((name for start, name in _KINDS if data.startswith(start)), None)
        if kind is not None:
            yield f'<img alt="" src="data:image/{kind};base64,{base64.b64encode(data).decode()}">\n'
