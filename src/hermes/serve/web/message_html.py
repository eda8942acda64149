"""Messages as HTML: Markdown, tool calls with how they ended and their output, pictures, recordings and files by their names.

Everything that came from a person, a model or a tool is escaped; the only tags are those made here and in markdown_html.
Escape codes of terminals and characters that reorder text are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import escape
from typing import Any
from urllib.parse import quote

import msgspec

from hermes.agent.attached_files import NOTE
from hermes.serve.web import markdown_html
from hermes.texts import counted, encodable, harmless, one_line

_REFERENCE = re.compile(r"attachment:sha256:([0-9a-f]{64})")
_EXIT = re.compile(r"\[(?:.*; )?exit status (-?\d+)[^\]\n]*\]\s*$")
_TELLING = ("command", "query", "path", "file_path", "url", "pattern")  # arguments that say what a call is about
_LONGEST = 100_000  # characters of one text that are in the page; the rest is behind a link
_DECLINED = ("the user declined", "refused, since", "not run: permissions", "not done: permissions")


def _clean(text: Any) -> str:
    cleaned: str = encodable(harmless(str(text)))
    return cleaned


def place_of(row: Mapping[str, Any], what: str, name: str = "") -> str:
    """The address of the text of a message, or of a file in it; of an undone one it names the session that can bring it back."""
    undone = row.get("undone_in")
    return f"/{what}/{row['id']}{name}" + (f"?undone_in={quote(str(undone), safe='')}" if undone else "")


def _cut(text: str, row: Mapping[str, Any]) -> tuple[str, str]:
    """The part of a text that is in the page, and a link to the whole of it."""
    if len(text) <= _LONGEST:
        return text, ""
    return text[:_LONGEST], (
        f'<p class="cut">… {len(text) - _LONGEST:,} more characters: '
        f'<a href="{place_of(row, "text")}" download>download the whole text</a></p>'
    )


def markdown(text: str, row: Mapping[str, Any]) -> str:
    """A text as HTML."""
    shown, rest = _cut(text, row)
    return "".join(markdown_html.blocks(_clean(shown))) + rest


def written(text: str) -> list[str]:
    """The blocks of a reply that is still being written, as HTML."""
    return markdown_html.blocks(markdown_html.decided(_clean(text[:_LONGEST])))


class HtmlRenderer:
    """Messages as HTML; `type_of(digest)` is the type of an attachment that a browser may show, None for others."""

    def __init__(self, type_of: Callable[[str], str | None]) -> None:
        self._type_of = type_of

    def message(
        self, row: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]], waiting: str | None = None
    ) -> dict[str, Any]:
        """A message as the page shows it: who, when, and its body as HTML. `results` are tools' messages by their call.

        `waiting` is given while a turn runs: the id of the call that waits for permission, or "".
        """
        return {
            "id": row["id"],
            "role": row["role"],
            "at": row["timestamp"],
            "model": row.get("model"),
            "tokens": [row.get(f"{name}_tokens") for name in ("input", "output", "cache_read", "cache_write")],
            "cost": row.get("cost_usd"),
            "ended": row.get("finish_reason"),
            "html": self._body(row, results, waiting),
            "said": place_of(row, "text"),
        }

    def _body(self, row: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]], waiting: str | None) -> str:
        parts: list[str] = []
        thought = row.get("reasoning") or row.get("reasoning_content")
        if thought:
            parts.append(f"<details class=reasoning><summary>Reasoning</summary>{_pre(str(thought), row)}</details>")
        parts += self._content(row)
        for call in row.get("tool_calls") or ():
            parts.append(self._call(call, results, waiting))
        return "".join(parts) or '<p class="dim">(empty)</p>'

    def _content(self, row: Mapping[str, Any]) -> list[str]:
        content = row.get("content")
        if row["role"] == "tool":
            return [self._output(row, folded=True)]
        if isinstance(content, str):
            return [self._text(content, row)] if content else []
        parts = content if isinstance(content, list) else [content] if content else []
        texts = [str(part.get("text") or "") for part in parts if _is_text(part)] if row["role"] == "user" else []
        noted = {found[3] for text in texts for found in NOTE.finditer(text)}  # shown where they are noted
        return [self._part(part, row, noted) for part in parts]

    def _text(self, text: str, row: Mapping[str, Any]) -> str:
        """A text; in a person's, the files that are noted there with what was read from them, instead of the notes."""
        if row["role"] != "user" or "attachment:sha256:" not in text:
            return markdown(text, row)
        made, begun = [], 0
        for found in NOTE.finditer(text):
            made.append(markdown(text[begun : found.start()], row))
            made.append(self._attachment(found[3], found[1], one_line(found[2]), row))
            if found[4]:
                name = escape(one_line(found[2]))
                made.append(f"<details class=output><summary>{name}</summary>{_pre(found[4], row)}</details>")
            begun = found.end()
        return "".join([*made, markdown(text[begun:], row)])

    def _part(self, part: Any, row: Mapping[str, Any], noted: set[str]) -> str:
        if _is_text(part):
            return self._text(str(part.get("text") or ""), row)
        found = _REFERENCE.findall(str(part))
        if found:
            kind = str(part.get("type") or "") if isinstance(part, dict) else ""
            return "".join(self._attachment(one, kind, _name_of(part), row) for one in found if one not in noted)
        return f"<pre>{escape(_clean(str(part)[:2000]))}</pre>"

    def _attachment(self, digest: str, kind: str, name: str, row: Mapping[str, Any]) -> str:
        """A picture, a recording, or a link to the file."""
        place = place_of(row, "attachment", f"/{digest}")
        told = escape(name or kind.replace("_", " ") or "attachment", quote=True)
        mime = self._type_of(digest)
        family = (mime or "").partition("/")[0]
        if family == "image":
            return (
                f'<a class=attachment href="{place}" target=_blank rel=noopener>'
                f'<img loading=lazy alt="{told}" src="{place}"></a>'
            )
        if family in ("audio", "video"):
            return f'<{family} class=attachment controls preload=metadata src="{place}" aria-label="{told}"></{family}>'
        return f'<p class=attachment><a href="{place}" download="{told}">{told}</a></p>'

    def _call(self, call: Any, results: Mapping[str, Mapping[str, Any]], waiting: str | None) -> str:
        function = call.get("function") if isinstance(call, dict) else None
        told = function if isinstance(function, dict) else {}
        name, given = str(told.get("name") or "tool"), _clean(str(told.get("arguments") or "")[:_LONGEST])
        result = results.get(str(call.get("id"))) if isinstance(call, dict) else None
        word, state = status(result)
        if result is None and waiting is not None:
            word, state = ("waits for permission", "bad") if call.get("id") == waiting else ("running", "")
        output = (
            ""
            if result is None
            else f'<div id="m{result["id"]}" class=result>{self._output(result, folded=False)}</div>'
        )
        return (
            f"<details class=call><summary><b>{escape(one_line(name))}</b>"
            f" <span class=given>{escape(_gist(told.get('arguments')))}</span>"
            f' <span class="state {state}">{escape(word)}</span></summary><pre>{escape(given)}</pre>{output}</details>'
        )

    def _output(self, row: Mapping[str, Any], *, folded: bool) -> str:
        content = row.get("content")
        if not isinstance(content, str):
            parts = content if isinstance(content, list) else [content or ""]
            return "".join(self._part(part, row, set()) for part in parts)
        block = _pre(content, row)
        if not folded:
            return block
        name = escape(one_line(str(row.get("tool_name") or "result")))
        lines = counted(content.count("\n") + 1, "line")
        return f"<details class=output><summary><b>{name}</b> {lines}</summary>{block}</details>"


def _pre(text: str, row: Mapping[str, Any]) -> str:
    """A text as it is, and a link to the rest of a very long one."""
    shown, rest = _cut(text, row)
    return f"<pre>{escape(_clean(shown))}</pre>{rest}"


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text")


def _name_of(part: Any) -> str:
    """The name of a file that is a part of a message, where the message gives one."""
    if not isinstance(part, dict):
        return ""
    places = [part, *(value for value in part.values() if isinstance(value, dict))]
    named = (one.get(key) for one in places for key in ("name", "filename", "title"))
    return one_line(next((name for name in named if name and isinstance(name, str)), ""))


def _gist(arguments: Any) -> str:
    """Summarise a call on one line: the command, the file …, else all arguments."""
    text = str(encodable(str(arguments or "")))
    try:
        given = msgspec.json.decode(text) if len(text) < _LONGEST else None
    except msgspec.DecodeError:
        given = None
    if isinstance(given, dict):
        text = next((given[name] for name in _TELLING if isinstance(given.get(name), str)), text)
    return one_line(text[:300])[:160]


def status(result: Mapping[str, Any] | None) -> tuple[str, str]:
    """How a call ended, in a word or two, and its class."""
    if result is None:
        return "no result", "bad"
    text = result.get("content")
    if not isinstance(text, str):
        return "done", "good"
    ended = _EXIT.search(text[-300:])
    if ended is not None:
        return ("done", "good") if ended[1] == "0" else (f"exit {ended[1]}", "bad")
    start = text[:200].lstrip().lower()
    if start.removeprefix("error:").lstrip().startswith(_DECLINED):
        return "declined", "bad"
    if start.startswith("error: interrupted"):
        return "stopped", "bad"
    return ("failed", "bad") if start.startswith(("error:", "error ", '{"error"')) else ("done", "good")


def marked(snippet: str) -> str:
    """A snippet of a search hit with its matches marked."""
    return escape(one_line(encodable(snippet))).replace("&gt;&gt;&gt;", "<mark>").replace("&lt;&lt;&lt;", "</mark>")


def shown_type(data: bytes) -> str | None:
    """The type of a picture or recording that a browser may show; None for anything else, which is only offered for download.

    The bytes decide, not what was said about them: SVG and HTML are programs.
    """
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12])
    if data[4:8] == b"ftyp":
        return "audio/mp4" if data[8:11] in (b"M4A", b"M4B") else "video/mp4"
    known = {
        b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"OggS": "audio/ogg",
        b"ID3": "audio/mpeg", b"\xff\xfb": "audio/mpeg", b"\xff\xf3": "audio/mpeg", b"fLaC": "audio/flac",
        b"\x1aE\xdf\xa3": "video/webm",
    }  # fmt: skip
    return next((mime for start, mime in known.items() if data.startswith(start)), None)
