"""The text a person wrote: a mail's body without the markup, the quoted mail below it and the signature.

Mail programs put the answered mail under the answer, each in its own way. The conversation has it already, so only the
new text counts. Everything works line by line, in one pass: no mail can be made slow to read.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

_LONGEST_LINE = 500  # attributions and headings are shorter; a longer line is text
# "On Monday Alice wrote:" in the languages most mails are in
_WROTE = re.compile(
    r"^(?:(?:on|am|le|el|em|il|op|den|dne|w dniu|\w{2,10}[.,]{0,2} \d|在|\d).{4,400}?"
    r"(?:wrote|schrieb(?: .{1,200})?|a écrit|escribió|escreveu|ha scritto|schreef(?: .{1,200})?|skrev(?: .{1,200})?"
    r"|napsal\(?a?\)?|napisał\(?a?\)?|пишет|написал\(?а?\)?|写道|寫道)|\d{4}.{4,200}<[^<>@\s]+@[^<>\s]+>)\s?[:：]\s*$",
    re.IGNORECASE,
)
_ORIGINAL = re.compile(
    r"^\s*-{2,}\s*(?:original(?: e-?mail)? message|original message|ursprüngliche nachricht|originalnachricht"
    r"|message d'origine|message original|mensaje original|mensagem original|messaggio originale"
    r"|oorspronkelijk bericht|ursprungligt meddelande|oprindelig meddelelse|原始邮件|原始郵件)\s*-{2,}\s*$",
    re.IGNORECASE,
)
_FROM = re.compile(r"^\W{0,3}(?:from|von|de|da|van|från|fra|od|от|发件人|寄件者|差出人)\*?\s?[:：]", re.IGNORECASE)
_SENT = re.compile(
    r"^\W{0,3}(?:sent|date|gesendet|datum|envoyé|enviado(?: el)?|fecha|data|inviato|verzonden|skickat|sendt|wysłano"
    r"|отправлено|дата|发送时间|日期|送信日時)\*?\s?[:：]",
    re.IGNORECASE,
)
_MOBILE = re.compile(
    r"^(?:sent from (?:my|outlook|yahoo|mail|proton).{0,60}|get outlook for .{0,60}|von meinem .{1,40} gesendet"
    r"|gesendet von .{1,60}|gesendet mit .{1,60}|envoyé de(?:puis)? mon .{1,40}|enviado desde mi .{1,40}"
    r"|enviado do meu .{1,40}|inviato da .{1,40}|sendt fra min .{1,40}|verzonden vanaf .{1,40})$",
    re.IGNORECASE,
)
_FORWARD = re.compile(r"^\s*(?:fwd?|wg|tr|rv|enc|doorst|vs|转发|i)\s*[:：]", re.IGNORECASE)
_REPLY = re.compile(r"^\s*(?:re|aw|antw|antwort|sv|vs|odp|rif|res|回复|答复|ynt)(?:\[\d+\])?\s*[:：]\s*", re.IGNORECASE)


def is_forward(subject: str) -> bool:
    """Whether a mail forwards another: then the quoted text is its content."""
    return bool(_FORWARD.match(subject))


def without_reply_marks(subject: str) -> str:
    """A subject without "Re:", "AW:" and the like before it."""
    while match := _REPLY.match(subject):
        subject = subject[match.end() :]
    return subject.strip()


def unflowed(text: str, *, without_space: bool = False) -> str:
    """format=flowed (RFC 3676): lines that end with a space continue in the next; a signature's mark does not."""
    lines: list[str] = []
    flowing = False
    for line in text.split("\n"):
        quoted = line.startswith(">")
        if line.startswith(" "):
            line = line[1:]
        if flowing and not quoted and lines:
            lines[-1] += line
        else:
            lines.append(line)
        flowing = line.endswith(" ") and line != "-- " and not quoted
        if flowing and without_space:
            lines[-1] = lines[-1][:-1]
    return "\n".join(lines)


def new_text(text: str, *, reply: bool) -> str:
    """The new text of a mail: without the signature and, in a reply, without the answered mail."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if reply:
        lines = lines[: _quoted_from(lines)]
    lines = _without_signature(lines)
    if reply:
        lines = _without_last_quote(lines)
        lines = _without_first_quote(lines)
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def quoted(text: str) -> str:
    """The mail that a reply contains below or above its new text; "" if quotes stand between and belong to the text."""
    if any(line.startswith(">") for line in new_text(text, reply=True).split("\n")):
        return ""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    start = _quoted_from(lines)
    if start < len(lines):
        below = [line for line in lines[start:] if not _ORIGINAL.match(line[:_LONGEST_LINE])]
        return "\n".join(below).strip("_-* \n")
    return "\n".join(re.sub(r"\A> ?", "", line) for line in lines if line.startswith(">")).strip()


def _quoted_from(lines: list[str]) -> int:
    """The line at which a mail is quoted without "> ", as Outlook and phones do; else the end."""
    for number, line in enumerate(lines):
        if len(line) > _LONGEST_LINE:
            continue
        if _ORIGINAL.match(line):
            return number
        if _FROM.match(line) and any(_SENT.match(after[:80]) for after in lines[number + 1 : number + 4]):
            above = number - 1
            while above >= 0 and not lines[above].strip():
                above -= 1
            return above if above >= 0 and re.fullmatch(r"\s*[_\-*]{5,}\s*", lines[above][:200]) else number
        length = _attribution(lines, number)
        if length and not _next_is_quote(lines, number + length) and re.search(r"[@\d]", " ".join(lines[number:][:3])):
            return number
    return len(lines)


def _attribution(lines: list[str], number: int) -> int:
    """How many lines the "On … wrote:" takes that begins at this one; 0 without one. Programs wrap it."""
    for length in (1, 2, 3):
        wrapped = lines[number : number + length]
        joined = " ".join(line.strip() for line in wrapped)
        if not wrapped[-1].strip() or wrapped[-1].startswith(">") or len(joined) > _LONGEST_LINE:
            return 0
        if _WROTE.match(joined):
            return length
    return 0


def _next_is_quote(lines: list[str], number: int) -> bool:
    return next((line.startswith(">") for line in lines[number : number + 5] if line.strip()), False)


def _without_signature(lines: list[str]) -> list[str]:
    for number, line in enumerate(lines):
        if line in ("-- ", "--"):
            lines = lines[:number]
            break
    end = len(lines)
    while end and (not lines[end - 1].strip() or _MOBILE.match(lines[end - 1].strip()[:100])):
        end -= 1
    return lines[:end]


def _without_last_quote(lines: list[str]) -> list[str]:
    """Without the quote at the end and the line that announces it. A quote that is answered below stays."""
    end = len(lines)
    while end and (not lines[end - 1].strip() or lines[end - 1].startswith(">")):
        end -= 1
    if not any(line.startswith(">") for line in lines[end:]):
        return lines
    for start in range(max(0, end - 3), end):
        if _attribution(lines, start) == end - start:
            return _without_signature(lines[:start])
    return _without_signature(lines[:end])


def _without_first_quote(lines: list[str]) -> list[str]:
    """The lines without a single quote at the top; where there are more quotes, each stays with its answer."""
    start = 0
    while start < len(lines) and not lines[start].strip():
        start += 1
    start += _attribution(lines, start) if start < len(lines) else 0
    after = start
    while after < len(lines) and (lines[after].startswith(">") or not lines[after].strip()):
        after += 1
    quoted = any(line.startswith(">") for line in lines[start:after])
    if not quoted or any(line.startswith(">") for line in lines[after:]):
        return lines
    return lines[after:]


# ------------------------------------------------------------------------------------------ mails without plain text

_SILENT = {"head", "style", "script", "title", "template", "noscript", "svg", "object"}
_BLOCKS = {"p", "div", "table", "ul", "ol", "tr", "section", "article", "header", "footer", "pre", "center"}
_BLOCKS |= {"h1", "h2", "h3", "h4", "h5", "h6", "dl", "dt", "dd", "form", "fieldset", "figure", "main", "nav"}
_PARAGRAPHS = {"p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "table", "pre"}
_DEEPEST = 8  # quotes in quotes; deeper ones count as this deep


def text_of_html(html: str) -> str:
    """HTML as plain text: paragraphs, lists, links with their addresses, quotes with "> ". What is hidden stays so."""
    reader = _HtmlText()
    reader.feed(html)
    reader.close()
    return reader.text()


class _HtmlText(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._lines: list[tuple[int, str]] = []  # how deep it is quoted, and what it says
        self._line: list[str] = []
        self._quote = 0
        self._exact = 0  # inside <pre>
        self._silent: list[str] = []  # the element that is not shown, and those of its name inside
        self._links: list[tuple[str, int]] = []

    def text(self) -> str:
        self._end_line()
        shown: list[str] = []
        for depth, line in self._lines:
            line = ("> " * depth + line).rstrip() if depth else line
            if line.strip("> ") or (shown and shown[-1].strip("> ")):
                shown.append(line)
        return "\n".join(shown).strip("\n")

    def _end_line(self) -> None:
        line = "".join(self._line)
        self._line = []
        line = line if self._exact else re.sub(r"[ \t\n\r\f]+", " ", line).strip()
        if line:
            self._lines.append((self._quote, line))

    def _blank(self) -> None:
        self._end_line()
        self._lines.append((self._quote, ""))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._silent:
            if tag == self._silent[0]:
                self._silent.append(tag)
            return
        attributes = {name: value or "" for name, value in attrs}
        hidden = "hidden" in attributes or "display:none" in attributes.get("style", "").replace(" ", "").lower()
        if tag in _SILENT or (hidden and tag in _BLOCKS | {"span", "td", "a", "b", "i", "font"}):
            self._silent.append(tag)
        elif tag == "br":
            if any(piece.strip() for piece in self._line):
                self._end_line()
            else:
                self._blank()
        elif tag == "hr":
            self._end_line()
            self._lines.append((self._quote, "________"))
        elif tag == "blockquote":
            self._blank()
            self._quote = min(self._quote + 1, _DEEPEST)
        elif tag == "li":
            self._end_line()
            self._line.append("- ")
        elif tag in ("td", "th"):
            self._line.append(" ")
        elif tag == "a":
            self._links.append((attributes.get("href", ""), len(self._line)))
        elif tag == "img" and attributes.get("alt"):
            self._line.append(f"[{attributes['alt']}]")
        if tag in _BLOCKS:
            self._blank() if tag in _PARAGRAPHS else self._end_line()
        if tag == "pre":
            self._exact += 1

    def handle_endtag(self, tag: str) -> None:
        if self._silent:
            if tag == self._silent[0]:
                self._silent.pop()
            return
        if tag == "a" and self._links:
            href, start = self._links.pop()
            shown = "".join(self._line[start:]).strip()
            if href.startswith(("http://", "https://")) and shown and shown.rstrip("/") not in href:
                self._line.append(f" ({href})")
        elif tag == "blockquote" and self._quote:
            self._end_line()
            self._quote -= 1
            self._blank()
        elif tag in _BLOCKS or tag == "li":
            self._blank() if tag in _PARAGRAPHS else self._end_line()
        if tag == "pre" and self._exact:
            self._exact -= 1

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        if self._exact:
            first, *rest = data.split("\n")
            self._line.append(first)
            for line in rest:
                self._end_line()
                self._line.append(line)
        else:
            self._line.append(data)
