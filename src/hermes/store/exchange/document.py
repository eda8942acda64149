"""Documents, which stores exchange about a session, and how two of them become one.

A document holds one session, the messages that were ever stored in it, and its forks: where two stores went on with it
independently. Merging is commutative, associative and idempotent, so stores that have seen the same documents, in any order
and however often, have the same one. Every value carries a clock and the store that set it: the later one counts. Messages
form a tree (each names the message before it); where several follow the same one, the one said first stays in the session
and every other begins a fork, whose id is derived from that message: all stores make the same forks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes.errors import InvalidInput
from hermes.store.records import message_values

VERSION = 1
TICKS = 1_000_000  # of a clock, in a second
Document = dict[str, Any]
Register = list[Any]  # value, clock, store
# In this order: of two with the same clock, the last one counts.
LIVE, TRASHED, DELETED, SHREDDED = "live", "trashed", "wiped", "shredded"
_MASKED = "[masked:"
_FORKED_FIELDS = ("source", "user_id", "model", "model_config", "system_prompt", "cwd")


def canonical(value: Any) -> str:
    """JSON that is the same for equal values; lone surrogates are escaped."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(value: Any, length: int = 32) -> str:
    """A short name of a value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def new(tree: str) -> Document:
    """An empty document of a session."""
    return {"v": VERSION, "id": tree, "messages": {}, "sessions": {}}


def new_session() -> dict[str, Any]:
    """An empty entry of a document for one session."""
    return {"fields": {}, "tags": {}, "members": {}, "usage": {}, "events": {}, "seals": {}}


def fork_id(tree: str, message: str) -> str:
    """The id of the fork that begins with this message."""
    begin = tree if len(tree) <= 400 else hashlib.sha256(tree.encode()).hexdigest()
    return f"{begin}-{digest([tree, message], 12)}"


def key_of(tree: str) -> str:
    """The name under which stores exchange a session's document."""
    return hashlib.sha256(tree.encode()).hexdigest()[:32]


def checked(data: Any) -> Document:
    """A document from outside; InvalidInput when it can't be one."""
    try:
        if data["v"] > VERSION:
            raise InvalidInput("it was written by a newer version of hermes; update this one")
        forks = {fork_id(data["id"], one) for one in data["messages"]}
        if not set(data["sessions"]) <= forks | {data["id"]}:
            raise InvalidInput("it holds sessions that are no part of it")
        for one in data["messages"].values():
            if not isinstance(one["c"], int) or not isinstance(one["by"], str):
                raise InvalidInput("a message in it has no clock")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"it is no document of a session ({error})") from error
    result: Document = data
    return result


# ------------------------------------------------------------------------------------------ merging


def later(one: Register | None, other: Register | None) -> Register | None:
    """The register that counts: the later one; of two with the same clock and store, the greater value."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other, key=lambda register: (register[1], register[2], canonical(register[0])))


def merged(one: Document, other: Document) -> Document:
    """Both documents in one. `bodies` of either are not part of it."""
    out = new(one["id"])
    for origin in one["messages"].keys() | other["messages"].keys():
        out["messages"][origin] = _message(one["messages"].get(origin), other["messages"].get(origin))
    for session_id in one["sessions"].keys() | other["sessions"].keys():
        out["sessions"][session_id] = _session(one["sessions"].get(session_id), other["sessions"].get(session_id))
    return normal(out)


def _message(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any]:
    if one is None or other is None:
        return dict(one or other or {})
    out = {
        "p": min(one["p"], other["p"], key=lambda origin: origin or ""),
        "c": min(one["c"], other["c"]),
        "by": min(one["by"], other["by"]),
    }
    if (body := later(one.get("b"), other.get("b"))) is not None:
        out["b"] = body
    undone = [record["u"] for record in (one, other) if "u" in record]
    if undone:
        out["u"] = max(undone, key=canonical)
    for mark in ("gone", "red"):
        if one.get(mark) or other.get(mark):
            out[mark] = True
    return out


def _session(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any]:
    if one is None or other is None:
        return dict(one or other or {})
    out: dict[str, Any] = new_session()
    for part in ("fields", "tags", "members"):
        for name in one[part].keys() | other[part].keys():
            out[part][name] = later(one[part].get(name), other[part].get(name))
    for name in one["usage"].keys() | other["usage"].keys():
        slots: dict[str, list[Any]] = out["usage"].setdefault(name, {})
        for usage in (one["usage"].get(name, {}), other["usage"].get(name, {})):
            for store, counted in usage.items():
                slots[store] = max(slots.get(store, counted), counted)
    out["events"] = {**one["events"], **other["events"]}
    for at in one["events"].keys() & other["events"].keys():  # they differ where one store has masked a secret
        versions = one["events"][at], other["events"][at]
        out["events"][at] = max(versions, key=lambda event: (_MASKED in event["text"], canonical(event)))
    for at in one["seals"].keys() | other["seals"].keys():
        out["seals"][at] = sorted({*one["seals"].get(at, ()), *other["seals"].get(at, ())})
    for part in ("view", "life"):
        if (register := later(one.get(part), other.get(part))) is not None:
            out[part] = register
    if one.get("shred") or other.get("shred"):
        out["shred"] = True
    return out


def masked(document: Document, bodies: dict[str, Any], mask: message_values.Mask) -> None:
    """Mask the secrets in a document of another store and in the texts it comes with.

    A masked value follows the one it was made of by one tick of the clock, in every store that masks: so it is the same
    edit everywhere, it counts in stores that don't mask, too, and a later change counts as before.
    """
    for origin, body in bodies.items():
        if "tree" in body:  # of another document
            bodies[origin] = {**body, "body": message_values.masked_message(body["body"], mask)}
        elif (changed := message_values.masked_message(body, mask)) is not body:
            bodies[origin] = changed
            record = document["messages"].get(origin, {})
            if "b" in record:
                record["b"] = [digest(changed), record["b"][1] + 1, record["b"][2]]
    for one in document["sessions"].values():
        for name, (value, clock, store) in one["fields"].items():
            if (masked_value := message_values.masked_column(name, value, mask)) is not value:
                one["fields"][name] = [masked_value, clock + 1, store]
        for tag, (there, clock, store) in list(one["tags"].items()):
            if (masked_tag := mask(tag)) != tag:
                one["tags"][tag] = [False, clock + 1, store]
                one["tags"][masked_tag] = later(one["tags"].get(masked_tag), [there, clock, store])
        one["events"] = {at: message_values.masked_event(event, mask) for at, event in one["events"].items()}


def normal(document: Document) -> Document:
    """The document without the messages of shredded sessions."""
    if not any(one.get("shred") for one in document["sessions"].values()):
        return document
    homes = Placement(document).home
    for session_id, one in document["sessions"].items():
        if one.get("shred"):
            document["sessions"][session_id] = {**new_session(), "shred": True}
    for origin, record in document["messages"].items():
        if document["sessions"].get(homes[origin], {}).get("shred"):
            kept = {name: record[name] for name in ("p", "c", "by")}
            document["messages"][origin] = {**kept, "gone": True}
    if all(one.get("shred") for one in document["sessions"].values()):
        document["messages"] = {}
    return document


def highest_clock(document: Document) -> int:
    """The latest clock in a document."""
    clocks = [record["b"][1] for record in document["messages"].values() if "b" in record]
    for one in document["sessions"].values():
        registers = [*one["fields"].values(), *one["tags"].values(), *one["members"].values()]
        registers += [one[part] for part in ("view", "life") if part in one]
        clocks += [register[1] for register in registers]
    return max(clocks, default=0)


# ------------------------------------------------------------------------------------------ where messages belong


@dataclass(slots=True)
class Placement:
    """The session that each message belongs to, and the order of messages there."""

    document: Document
    home: dict[str, str] = field(default_factory=dict)
    order: dict[str, list[str]] = field(default_factory=dict)
    before: dict[str, str | None] = field(default_factory=dict)  # by fork, the message it goes on from

    def __post_init__(self) -> None:
        messages, tree = self.document["messages"], self.document["id"]
        following: dict[str | None, list[str]] = {}
        for origin, record in messages.items():
            before = record["p"] if record["p"] in messages else None
            following.setdefault(before, []).append(origin)
        sealed = self._seals()
        self.order[tree] = []
        todo: list[tuple[str, str | None]] = [(tree, None)]
        while todo:
            session_id, last = todo.pop()
            self.order.setdefault(session_id, [last] if last is not None else [])
            while (after := following.get(last)) is not None:
                stores = sealed.get(last or "", set())
                usual = [one for one in after if stores <= {messages[one]["by"]}]
                chosen = min(usual, key=self.by_time, default=None)
                for one in after:
                    if one != chosen:
                        fork = fork_id(tree, one)
                        self.home[one], self.before[fork] = fork, last
                        todo.append((fork, one))
                if chosen is None:
                    break
                self.home[chosen] = session_id
                self.order[session_id].append(chosen)
                last = chosen
        lost = sorted(messages.keys() - self.home.keys(), key=self.by_time)  # stores disagreed about what came first
        self.order[tree] += lost
        self.home.update(dict.fromkeys(lost, tree))

    def by_time(self, origin: str) -> tuple[int, str]:
        return self.document["messages"][origin]["c"], origin

    def _seals(self) -> dict[str, set[str]]:
        """By message, the stores that compressed the session after it: what others say after it begins a fork."""
        found: dict[str, set[str]] = {}
        for one in self.document["sessions"].values():
            for at, stores in one["seals"].items():
                found.setdefault(at, set()).update(stores)
        return found

    def life(self, session_id: str) -> tuple[str, float]:
        """Whether a session is live, in the trash, deleted or shredded, and since when. What was said in it after it was
        deleted elsewhere brings it back."""
        one = self.document["sessions"].get(session_id, {})
        if one.get("shred"):
            return SHREDDED, 0.0
        if "life" not in one:
            return LIVE, 0.0
        (state, at), clock, _ = one["life"]
        messages = self.document["messages"]
        records = (messages[origin] for origin in self.order.get(session_id, ()))
        if state != LIVE and any(record["c"] > clock and not record.get("gone") for record in records):
            return LIVE, 0.0
        return state, at

    def undone(self, origin: str) -> set[str]:
        """The messages that were undone when this one was said."""
        messages = self.document["messages"]
        current: str | None = origin
        seen: set[str] = set()
        while current is not None and current in messages and current not in seen:
            seen.add(current)
            if "u" in messages[current]:
                return set(messages[current]["u"])
            current = messages[current]["p"]
        return set()


def add_forks(document: Document, placement: Placement) -> None:
    """Give each fork that the messages ask for its entry: a branch that shows what was said before."""
    for fork in sorted(placement.before, key=lambda one: (_depth(placement, one), one)):
        if fork in document["sessions"]:
            continue
        first, before = placement.order[fork][0], placement.before[fork]
        parent = placement.home[before] if before is not None else document["id"]
        entry = new_session()
        source = document["sessions"].get(parent, new_session())["fields"]
        entry["fields"] = {name: [source[name][0], 0, ""] for name in _FORKED_FIELDS if name in source}
        for name, value in (
            ("kind", "branch"), ("parent_session_id", parent), ("started_at", document["messages"][first]["c"] / TICKS)
        ):  # fmt: skip
            entry["fields"][name] = [value, 0, ""]
        shown = _shown_before(document, placement, parent, before, placement.undone(first))
        entry["view"] = [{"hidden": {}, "rewinds": [], "refs": [["", shown, None, None]] if shown else []}, 0, ""]
        document["sessions"][fork] = entry


def _depth(placement: Placement, session_id: str) -> int:
    depth = 0
    while (before := placement.before.get(session_id)) is not None:
        session_id, depth = placement.home[before], depth + 1
    return depth


def _shown_before(
    document: Document, placement: Placement, session_id: str, last: str | None, undone: Iterable[str]
) -> list[str]:
    """The messages that a session showed up to one: carried ones, in their places, and its own."""
    own = placement.order[session_id]
    own = own[: own.index(last) + 1] if last in own else []
    view = document["sessions"].get(session_id, {}).get("view")
    carried: dict[str, list[str]] = {}
    for after, origins, _, born in view[0]["refs"] if view is not None else ():
        if born is None:
            carried.setdefault(after, []).extend(origins)
    hidden = set(undone)
    out = list(carried.get("", ()))
    for origin in own:
        if origin not in hidden and not document["messages"][origin].get("gone"):
            out.append(origin)
        out += carried.get(origin, ())
    return out


def absent(document: Document, bodies: Mapping[str, Any]) -> list[str]:
    """The messages that a document names without their text."""
    return sorted(
        origin
        for origin, record in document["messages"].items()
        if "b" in record and not record.get("gone") and not record.get("red") and origin not in bodies
    )


def total(slots: dict[str, list[Any]]) -> Any:
    """The sum over all stores."""
    return sum(slots[store][1] for store in sorted(slots))
