"""Whether a mail is from whom it says.

Anyone can write any From. Our own mail server checks (SPF, DKIM, DMARC) and notes the outcome in Authentication-Results
(RFC 8601); a mail counts as proven when one of these passed for the very domain that stands in From. Without a public
list of suffixes only an equal domain, or a parent of it, is near enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

ALWAYS, WHEN_CHECKED, NEVER = "always", "when-checked", "never"
_WORDS = {"true": ALWAYS, "yes": ALWAYS, "false": NEVER, "no": NEVER}
# which property of a passed method names the domain that was proven
_PROOF = {
    "dmarc": ("header.from",),
    "dkim": ("header.d", "header.i"),
    "spf": ("smtp.mailfrom", "smtp.mail"),
    "auth": ("smtp.auth",),
}


def wanted_proof(value: object) -> str:
    """The setting as one of ALWAYS, WHEN_CHECKED and NEVER; yes and no are understood. ValueError for anything else."""
    word = str(value).strip().lower()
    word = _WORDS.get(word, word)
    if word not in (ALWAYS, WHEN_CHECKED, NEVER):
        raise ValueError(f"require_authentication is {ALWAYS}, {WHEN_CHECKED} or {NEVER}, not {value!r}")
    return word


def doubt(headers: Sequence[str], address: str, *, wanted: str, server: str | None) -> str | None:
    """Why a mail from this address can't be trusted; None when it can.

    `headers` are its Authentication-Results, topmost first. `server` is the name our own server signs them with; without
    it the topmost counts, since a server writes its own above all that came with the mail.
    """
    if wanted == NEVER:
        return None
    ours = [header for header in headers if server is None or _signed_by(header).lower() == server.lower()]
    checks = [check for header in (ours if server else ours[:1]) for check in _checks(header)]
    if not checks:
        return "the mail server has not checked who sent it" if wanted == ALWAYS else None
    domain = address.rpartition("@")[2].lower()
    for method, outcome, properties in checks:
        if outcome == "pass" and any(_covers(properties.get(name, ""), domain) for name in _PROOF.get(method, ())):
            return None
    seen = ", ".join(f"{method}={outcome}" for method, outcome, _ in checks)
    return f"the mail server could not confirm the sender ({seen})"


def _signed_by(header: str) -> str:
    words = _without_comments(header).partition(";")[0].split()
    return words[0] if words else ""


def _checks(header: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(method, outcome, properties) of every check in a header; none for "server; none"."""
    for clause in _without_comments(header).split(";")[1:]:
        pairs = re.findall(r"([\w.\-/]+)\s*=\s*(\"[^\"]*\"|[^\s;]+)", clause)
        if pairs:
            (method, outcome), *rest = pairs
            yield (
                method.partition("/")[0].lower(),
                outcome.strip('"').lower(),
                {name.lower(): value.strip('"') for name, value in rest},
            )


def _without_comments(header: str) -> str:
    """A header without its (comments), which may hold anything; a quoted text stays as it is."""
    kept: list[str] = []
    depth, quoted, escaped = 0, False, False
    for sign in header:
        if escaped:
            escaped = False
        elif sign == "\\" and (quoted or depth):
            escaped = True
        elif sign == '"' and not depth:
            quoted = not quoted
        elif sign == "(" and not quoted:
            depth += 1
        if not depth:
            kept.append(sign)
        if sign == ")" and depth and not escaped:
            depth -= 1
            kept.append(" ")
    return "".join(kept)


def _covers(proven: str, domain: str) -> bool:
    proven = proven.rpartition("@")[2].strip("<>").rstrip(".").lower()
    return bool(proven) and (proven == domain or ("." in proven and domain.endswith("." + proven)))
