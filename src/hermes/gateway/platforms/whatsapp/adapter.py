"""The WhatsApp adapter: `mode: cloud` is a business number by Meta's Cloud API, `mode: bridge` a personal one by a bridge.

Markdown becomes WhatsApp's markup: *bold*, _italic_, ~struck through~, `code`, ```blocks of code```. WhatsApp has no escapes:
a mark counts where a word begins or ends, on one line. Where it would not count, or would end too early, it is left out, so
that no stray marks are seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes.errors import PlatformRefused
from hermes.gateway.adapter import Capabilities, Setting
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.tasks import Api, ApiAdapter

LONGEST = 4096  # characters of a text
_LAYOUT = markup.Layout(bullet="- ", code_alone=True, tight_lists=True)
_MARKS = {markup.BOLD: "*", markup.ITALIC: "_", markup.STRIKE: "~", markup.CODE: "`"}
_PREFIX = re.compile(r"[> ]*")
_UNSENDABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_SPACES = re.compile(r" *[\t\n]+ *| {4,}")


def formatted(markdown: str, longest: int = LONGEST) -> str:
    """The text to send; the Markdown itself where nothing visible would be left or it would become too long."""
    source = _UNSENDABLE.sub("\ufffd", markdown)
    marked = markup.marked(source, _LAYOUT)
    if not marked.text.strip():
        return source
    for text in (_written(marked), marked.text):
        if len(text) <= longest:
            return text
    return source


def one_line(markdown: str) -> str:
    """The text for a template's variable, which takes no line breaks, tabs or four spaces in a row."""
    text = markup.marked(_UNSENDABLE.sub("\ufffd", markdown), _LAYOUT).text or markdown
    return _SPACES.sub(" ", text).strip()


def _written(marked: markup.Marked) -> str:
    """The text with WhatsApp's marks around its spans."""
    text = marked.text
    opening: dict[int, list[tuple[int, int, str]]] = {}
    closing: dict[int, list[tuple[int, int, str]]] = {}
    for depth, span in enumerate(marked.spans):  # of two with the same place the outer one comes later
        for start, end, before, after in _pieces(text, span):
            opening.setdefault(start, []).append((-end, -depth, before))
            closing.setdefault(end, []).append((-start, depth, after))
    parts, last = [], 0
    for place in sorted({*opening, *closing}):
        parts.append(text[last:place])
        parts += [mark for _, _, mark in sorted(closing.get(place, ()))]  # what began last ends first
        parts += [mark for _, _, mark in sorted(opening.get(place, ()))]  # what ends last begins first
        last = place
    return "".join([*parts, text[last:]])


def _pieces(text: str, span: markup.Span) -> list[tuple[int, int, str, str]]:
    """The places for the marks of a span: around each of its lines, or around a block of code."""
    if span.kind == markup.PRE:
        inside = text[span.start : span.end]
        return [] if "```" in inside or not inside.strip() else [(span.start, span.end, "```\n", "\n```")]
    mark = _MARKS.get(span.kind)
    if mark is None:
        return []
    found, start = [], span.start
    for line in text[span.start : span.end].split("\n"):
        end = start + len(line)
        first = start if start == span.start else start + len(_PREFIX.match(line)[0])  # type: ignore[index]
        inside = text[first:end]
        first += len(inside) - len(inside.lstrip())
        last = first + len(inside.strip())
        if last > first and mark not in text[first:last] and _stands_alone(text, first, last):
            found.append((first, last, mark, mark))
        start = end + 1
    return found


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether no letter touches it from outside: only there WhatsApp reads a mark."""
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    return not (before.isalnum() or before == "_" or after.isalnum() or after == "_")


CLOUD, BRIDGE = "cloud", "bridge"


class WhatsApp(ApiAdapter[Api]):
    """A number on WhatsApp."""

    platform = "whatsapp"
    title = "WhatsApp"
    extra = "whatsapp"
    settings = (
        Setting("mode", "cloud (a business number at Meta) or bridge (a personal number)", asked=True, default=CLOUD),
        Setting("phone_number_id", "cloud: the number's id in Meta's console (not the number)", asked=True),
        Setting("access_token", "cloud: a system user's access token", secret=True, asked=True),
        Setting("app_secret", "cloud: the app's secret", secret=True, asked=True),
        Setting(
            "verify_token", "cloud: a word of your own, which you also enter in the console", secret=True, asked=True
        ),
        Setting("template", "cloud: an approved template for messages after 24 hours"),
        Setting("template_language", "cloud: the template's language", default="en_US"),
        Setting(
            "bridge_command", "bridge: the command that starts it, as node /opt/whatsapp-bridge/bridge.js", asked=True
        ),
        Setting("bridge_url", "bridge: its address, if it is started by something else"),
        Setting("bridge_token", "bridge: its token", secret=True),
        Setting("base_url", "cloud: where Meta's Graph API is", default="https://graph.facebook.com"),
        Setting("api_version", "cloud: the version of the Graph API", default="v24.0"),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=LONGEST, typing=True, media=True, quotes=True, files=True, largest_file=100_000_000,
        longest_caption=1024, choices=10, longest_choice=200, tells_edits=True,
        tells_deletions=True, mention_needed=True,
    )  # fmt: skip

    def __new__(cls, values: Mapping[str, Any], home: Path) -> WhatsApp[Any]:
        """The adapter for the `mode` of these settings."""
        from hermes.gateway.platforms.whatsapp.bridge import BridgedNumber
        from hermes.gateway.platforms.whatsapp.cloud import CloudNumber

        bridged = str(values.get("mode") or "").strip().lower() == BRIDGE
        return super().__new__(cls if cls is not WhatsApp else BridgedNumber if bridged else CloudNumber)

    def validate(self) -> None:
        """Refuse settings that can't work."""
        if self.text("mode").lower() not in (CLOUD, BRIDGE):
            raise PlatformRefused(f"{self.connection_name}: mode must be cloud or bridge, not {self.text('mode')!r}")

    logs_in = True
