"""The page's lists: conversations, search hits grouped by conversation, what can be filtered by, the trash and the sums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from hermes.agent.history import NEAREST
from hermes.commands.info_commands import message_counts
from hermes.serve.http_messages import ApiError, AsciiJson
from hermes.serve.web import message_html
from hermes.serve.web.visitors import visitor_of
from hermes.texts import one_line
from hermes.times import now, span
from hermes.why import sessions_that_changed

if TYPE_CHECKING:
    from datetime import tzinfo

    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import SessionRow
    from hermes.store.records.visibility import User

PAGE = 100  # sessions or messages that are sent at once
_HITS = 60
_TITLED = 30  # conversations that are found by their title
_MOST_LEFT_OUT = 200  # conversations that a search leaves out, because the page has them already
HEADLINE = (
    "id", "title", "preview", "source", "model", "message_count", "last_active", "pinned_at", "archived_at", "cwd", "kind",
)  # fmt: skip


class PageLists:
    """Everything the page lists."""

    def __init__(self, db: SessionDB, zone: tzinfo | None) -> None:
        self._db, self._zone = db, zone

    def sessions(self, request: Request) -> Response:
        """A page of conversations: the pinned ones, then the latest first; with `q`, those whose title matches it."""
        query, user = request.query_params, visitor_of(request).user
        if query.get("file"):
            return self._of_file(query["file"], user)
        words, pinned, offset = query.get("q") or None, query.get("pinned") == "1", number(query.get("offset"))
        everything = words or any(query.get(name) for name in ("source", "tag", "pinned", "archived"))
        narrowed: dict[str, Any] = {
            **self._filters(request), "source": query.get("source") or None, "title": words, "order_by_last_active": True,
            "include_archived": query.get("archived") == "1" or words is not None, "automated": None if everything else False,
            "limit": PAGE if words is None else _TITLED,
        }  # fmt: skip
        page = rows = self._db.list_sessions_rich(**narrowed, pinned=pinned, offset=offset)
        if not pinned and words is None:
            above = self._db.list_sessions_rich(**narrowed, pinned=True) if not offset else []
            rows = [*above, *(row for row in page if not row["pinned_at"])]
        return AsciiJson({"sessions": self.headlines(rows, user), "next": offset + PAGE if len(page) == PAGE else None})

    def _of_file(self, path: str, user: User | None) -> Response:
        """The conversations that changed a file, the latest change first."""
        ids = sessions_that_changed(self._db, Path(path), visible_to=user, is_local=False)[:PAGE]
        rows = self._db.get_sessions(ids, visible_to=user)
        return AsciiJson({"sessions": self.headlines([rows[one] for one in ids if one in rows], user), "next": None})

    def headlines(self, rows: Sequence[SessionRow], user: User | None) -> list[dict[str, Any]]:
        """The facts of a line about each session."""
        tags = self._db.tags_of([row["id"] for row in rows], visible_to=user)
        lines = []
        for row, shown in zip(rows, message_counts(self._db, rows), strict=True):
            line = {name: row.get(name) for name in HEADLINE}
            line |= {"message_count": shown, "tags": tags[row["id"]]}
            line |= {"title": one_line(row["title"]), "preview": one_line(row.get("preview"))[:300]}
            lines.append(line)
        return lines

    def search(self, request: Request) -> Response:
        """Hits grouped by conversation, in the order of the best of each; `not` names conversations to leave out."""
        query, user = request.query_params, visitor_of(request).user
        words = (query.get("q") or "").strip()
        if not words:
            return AsciiJson({"groups": []})
        within = None
        if file := query.get("file"):
            within = sessions_that_changed(self._db, Path(file), visible_to=user, is_local=False)
        hits = self._db.search_messages(
            words, [query["source"]] if query.get("source") else None, **self._filters(request),
            role_filter=[query["role"]] if query.get("role") else None, limit=_HITS, tool=query.get("tool") or None,
            session_ids=within, exclude_sessions=query.getlist("not")[:_MOST_LEFT_OUT] or None,
        )  # fmt: skip
        rows = self._db.get_sessions([*dict.fromkeys(hit["session_id"] for hit in hits)], visible_to=user)
        lines = {line["id"]: line for line in self.headlines([*rows.values()], user)}
        groups: dict[str, dict[str, Any]] = {}
        for hit in hits:
            if hit["session_id"] not in lines:
                continue  # it was put in the trash meanwhile
            group = groups.setdefault(hit["session_id"], {"session": lines[hit["session_id"]], "hits": []})
            group["hits"].append({
                "id": hit["id"], "role": hit["role"], "tool": hit["tool_name"], "at": hit["timestamp"],
                "html": message_html.marked(hit["snippet"]),
            })  # fmt: skip
        weak = bool(hits) and all(hit["confidence"] == "weak" for hit in hits)
        return AsciiJson({"groups": [*groups.values()], "full": len(hits) == _HITS, "note": NEAREST if weak else ""})

    def facets(self, request: Request) -> Response:
        """The values that the chips offer."""
        return AsciiJson(self._db.facets(visible_to=visitor_of(request).user))

    def trash(self, request: Request) -> Response:
        """The conversations in the trash."""
        if visitor_of(request).user is not None:
            raise ApiError(404, "the trash is the owner's")
        rows = [
            {
                "id": row["id"], "source": row["source"], "trashed_at": row["trashed_at"],
                "title": one_line(row["trashed_title"]) or one_line(row["preview"])[:300],
            }
            for row in self._db.list_trash()
        ]  # fmt: skip
        return AsciiJson({"sessions": rows})

    def insights(self, request: Request) -> Response:
        """The sums that `hermes insights --json` prints."""
        query, user = request.query_params, visitor_of(request).user
        found = self._db.insights(
            days=min(number(query.get("days")) or 30, 36_500), source=query.get("source") or None, now=now(),
            timezone=self._zone, whole_days=True, visible_to=user,
        )  # fmt: skip
        return AsciiJson(found)

    def _filters(self, request: Request) -> dict[str, Any]:
        """The filters that lists and searches have in common, as the record takes them."""
        query = request.query_params
        filters: dict[str, Any] = {name: query.get(name) or None for name in ("tag", "model")}
        filters |= {"cwd": query.get("folder") or None, "visible_to": visitor_of(request).user}
        try:
            for end, name in enumerate(("since", "until")):
                filters[name] = span(query[name], self._zone)[end] if query.get(name) else None
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        return filters


def number(value: Any) -> int:
    """A whole number from 0 on; anything else is 0."""
    try:
        return min(max(0, int(value or 0)), 1 << 53)
    except (TypeError, ValueError):
        return 0
