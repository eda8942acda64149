"""HTML: one page that needs nothing else, light or dark as the reader's screen is.

Nothing from a message becomes markup but what Markdown makes of a reply, and the page's own policy forbids scripts and
anything from elsewhere. Pictures lie in the page itself.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hermes.interop.formats import Export
from hermes.interop.jsonl import encoded
from hermes.interop.markdown import calls_of
from hermes.store.records.attachments import Read, references
from hermes.store.records.events import described, woven
from hermes.store.text.index_text import plain_content
from hermes.texts import shortened, unfinished
from hermes.times import clock

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

    from hermes.store.records.rows import ExportedSession, MessageRow, SessionEvent, SessionRow

_STYLE = """
:root { color-scheme: light dark; --page: #fbfaf8; --text: #1f2328; --dim: #656d76; --line: #e3e0da; --user: #fff3d6;
  --code: #f1efea; --accent: #9a6700; --green: #1a7f37;
  --keyword: #b3261e; --string: #0a5c2b; --number: #0550ae; --name: #6639ba }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --text: #e4e6ea; --dim: #9aa1ac; --line: #2c3037;
  --user: #2b2413; --code: #20242a; --accent: #e3b341; --green: #56d364;
  --keyword: #ff8f85; --string: #a5d6a7; --number: #9ecbff; --name: #d2a8ff } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 52rem; padding: 2rem 1.25rem 4rem; background: var(--page); color: var(--text);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; overflow-wrap: anywhere }
a { color: inherit; text-decoration-color: var(--accent); text-underline-offset: .15em }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 .25rem }
.about { color: var(--dim); font-size: .85rem; margin: 0 0 1.5rem }
nav { margin-bottom: 2.5rem } nav ol { padding-inline-start: 1.75rem } nav small { color: var(--dim) }
section { border-top: 2px solid var(--line); padding-top: 1.75rem; margin-top: 2.5rem }
section:first-of-type { border: 0; margin: 0; padding: 0 }
article { margin: 0 0 1.25rem; padding: .1rem 0 .1rem 1rem; border-left: 3px solid var(--green);
  content-visibility: auto; contain-intrinsic-size: auto 6rem }
article.user { border-color: var(--accent); background: var(--user); border-radius: 0 .5rem .5rem 0;
  padding: .6rem 1rem }
article.tool, article.system, article.other { border-color: var(--line) }
header { font-size: .8rem; color: var(--dim); margin-bottom: .25rem }
header b { color: var(--text) }
.typed { white-space: pre-wrap; margin: .6rem 0 } header + .typed, header + .nothing { margin-top: 0 }
pre { background: var(--code); border-radius: .4rem; padding: .75rem 1rem; overflow: auto; margin: .5rem 0; tab-size: 4 }
pre.result { white-space: pre-wrap; max-height: 32rem }
code, pre { font: .875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: normal }
pre code { font-size: 1em } pre.result { overflow-wrap: anywhere }
:not(pre) > code { background: var(--code); border-radius: .25rem; padding: .1em .3em; overflow-wrap: anywhere }
article.user pre, article.user :not(pre) > code { background: var(--page) }
.said > :first-child { margin-top: 0 } .said > :last-child { margin-bottom: 0 }
.said p, .said ul, .said ol, .said blockquote, .said .wide { margin: .6rem 0 }
.said h1, .said h2, .said h3, .said h4, .said h5, .said h6 { font-size: 1.05rem; line-height: 1.4; margin: 1.1rem 0 .4rem }
.said h1 { font-size: 1.3rem } .said h2 { font-size: 1.15rem }
.said ul, .said ol { padding-inline-start: 1.6rem } .said li > ul, .said li > ol, .said li > p { margin: .2rem 0 }
.said blockquote { border-inline-start: 3px solid var(--line); padding-inline-start: 1rem; margin-inline: 0;
  color: var(--dim) }
.said hr { border: 0; border-top: 1px solid var(--line); margin: 1.25rem 0 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .95em }
th, td { border: 1px solid var(--line); padding: .3rem .7rem; overflow-wrap: normal } th { background: var(--code) }
details { margin: .35rem 0 } summary { cursor: pointer; color: var(--dim); font-size: .875rem }
summary b { color: var(--text); font-weight: 600 }
img { display: block; max-width: 100%; max-height: 40rem; border-radius: .4rem; margin: .5rem 0 }
pre .k, pre .kn, pre .kd, pre .kc, pre .ow { color: var(--keyword) }
pre .s, pre .s1, pre .s2, pre .sd, pre .sa { color: var(--string) }
pre .c, pre .c1, pre .cm, pre .ch { color: var(--dim); font-style: italic } pre .mi, pre .mf, pre .m { color: var(--number) }
pre .nf, pre .nc, pre .nb, pre .nt { color: var(--name) } pre .gi { color: var(--green) } pre .gd { color: var(--keyword) }
.nothing { color: var(--dim); font-style: italic; margin: 0 }
@media (max-width: 30rem) { body { padding: 1.25rem .9rem 3rem } article { padding-inline-start: .7rem } }
@media print { body { max-width: none } article { content-visibility: visible }
  pre { white-space: pre-wrap; overflow-wrap: anywhere } pre.result { max-height: none } }
"""
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'\">\n"
    '<meta name="referrer" content="no-referrer">\n'
)
_FENCE = re.compile(r"^(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_BLANK = re.compile(r"\n[ \t]*\n")
_MARKDOWN_UP_TO = 200_000  # characters; a longer reply is shown as it came
_NOTHING = "\ufffd"
_KINDS = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"), (b"RIFF", "webp"))


def write(export: Export) -> Iterator[bytes]:
    """Exported sessions as one page, piece by piece; the contents are a list at the top."""
    title, zone = export.title, export.zone
    yield f"{_HEAD}<title>{_safe(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n".encode()
    opening = f"<nav>\n<h1>{_safe(title)}</h1>\n<ol>\n"
    names: dict[str, str] = {}  # of the sessions in this page
    children: dict[str, list[str]] = {}
    for row in export.contents:
        yield _out(opening + _entry(row, zone))
        opening = ""
        names[row["id"]] = row.get("title") or row.get("preview") or row["id"]
        if row.get("parent_session_id"):
            children.setdefault(str(row["parent_session_id"]), []).append(row["id"])
    if not opening:
        yield b"</ol>\n</nav>\n"
    for session in export.sessions:
        yield _out(_session_head(session, zone, names, children.get(session["id"], [])))
        for is_event, item in woven(session.get("messages") or [], session.get("events") or []):
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


def _session_head(
    session: ExportedSession, zone: tzinfo | None, names: Mapping[str, str], children: Sequence[str]
) -> str:
    facts = [
        session["id"],
        session.get("source"),
        session.get("model"),
        clock(session.get("started_at"), zone, unknown=""),
    ]
    about = [_safe(fact) for fact in facts if fact]
    if session.get("parent_session_id"):
        how = {"branch": "branched from", "reset": "follows"}.get(str(session.get("kind")), "continues")
        about.append(f"{how} {_link(str(session['parent_session_id']), names)}")
    if children:
        about.append("continued in " + ", ".join(_link(child, names) for child in children))
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
    when, text = _safe(clock(event["at"], zone, unknown="")), _safe(described(event))
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
        yield _folded("<b>reasoning</b>", typed(str(thought)))
    text = plain_content(message.get("content"))
    if text.strip():
        if role == "tool":
            yield _folded(_first_line(text), f'<pre class="result" dir="auto">{_safe(text.strip(chr(10)))}</pre>')
        elif role == "system":
            yield _folded(_first_line(text), typed(text))
        else:
            yield said(text) if role == "assistant" and len(text) <= _MARKDOWN_UP_TO else typed(text)
    if cut_off := unfinished(message):
        yield f'<p class="nothing">✂ {_safe(cut_off)}</p>\n'
    yield from _pictures(message.get("content"), attachments)
    for called, given in calls_of(message):
        about = " ".join(given[:160].split()) + ("…" if len(given) > 160 else "")
        yield _folded(
            f"calls <b>{_safe(called)}</b> {_safe(about)}", f'<pre class="result"><code>{_safe(given)}</code></pre>'
        )


def _first_line(text: str) -> str:
    """The headline of a folded text: how it begins, and how much there is."""
    lines = text.strip().split("\n", 1)
    more = text.strip().count("\n")
    shown = lines[0].strip()
    return _safe(shortened(shown, 101)) + (f" <b>+{more:,} line{'s' if more > 1 else ''}</b>" if more else "")


def _folded(summary: str, inside: str) -> str:
    return f'<details><summary dir="auto">{summary}</summary>{inside}</details>\n'


# ------------------------------------------------------------------------------------------------ words


def said(text: str) -> str:
    """A reply: Markdown as HTML. Tags in it stay text, a link is to the web or to nothing, a picture from elsewhere is a link."""
    return f'<div class="said">{_markdown().render(text.replace(chr(0), _NOTHING))}</div>\n'


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    options = {"html": False, "breaks": True, "highlight": _highlighted}
    parser = MarkdownIt("commonmark", options).enable(["table", "strikethrough"])
    parser.core.ruler.push("direction", _direct)
    parser.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("image", _linked_picture)
    return parser


def _highlighted(code: str, language: str, _: str) -> str:
    """Code with its words marked by kind, as HTML; "" (as it is) for a language that is not known."""
    try:
        from pygments import highlight  # type: ignore[import-untyped]
        from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
        from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
        from pygments.util import ClassNotFound  # type: ignore[import-untyped]
    except ImportError:
        return ""
    try:
        lexer = get_lexer_by_name(language) if language and len(code) <= _MARKDOWN_UP_TO else None
    except ClassNotFound:
        lexer = None
    return "" if lexer is None else str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


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


def typed(text: str) -> str:
    """Text as it was typed, spaces and all; only fences and `code` are marked."""
    out, at = [], 0
    for fence in _FENCE.finditer(text):
        out += [_prose(text[at : fence.start()]), f'<pre dir="ltr"><code>{_safe(fence[2].rstrip())}</code></pre>\n']
        at = fence.end()
    return "".join([*out, _prose(text[at:])])


def _prose(text: str) -> str:
    """Paragraph by paragraph, each in the direction of its own words."""
    parts = [part.strip("\n") for part in _BLANK.split(text)]
    return "".join(
        f'<p class="typed" dir="auto">{_CODE.sub(_code, _safe(part))}</p>\n' for part in parts if part.strip()
    )


def _code(match: re.Match[str]) -> str:
    return f"<code>{match[1]}</code>"


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
