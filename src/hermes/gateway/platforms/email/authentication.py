"""Authentication: whether a mail is from the sender it names.

Anyone can write any From, and any Authentication-Results (RFC 8601). Our own mail server checks (SPF, DKIM, DMARC, login)
and writes the outcome above everything that came with the mail. So only results count that carry its name (authserv_id)
and stand above the line with which it received the mail; a sender can't write there. A mail is proven when a check passed
for the domain in From and, where the domain is our own or the checks name an account of that domain, for that very address.

A DKIM signature stays valid when anyone sends the mail on to us, with headers added that are not signed. So a proven mail
must also be addressed to us, be new and have a Message-ID (`misuse`), by headers that the signature covers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from email.utils import mktime_tz, parsedate_tz

ALWAYS, WHEN_CHECKED, NEVER = "always", "when-checked", "never"
# Servers that write their results below their own Received line and remove results with their name that came with the
# mail; they also refuse mail with the address of another of their accounts.
KNOWN = frozenset({"mx.google.com"})
_WORDS = {"true": ALWAYS, "yes": ALWAYS, "false": NEVER, "no": NEVER}
# which property of a passed check names the domain that was proven
_PROOF = {"dmarc": ("header.from",), "dkim": ("header.d", "header.i"), "spf": ("smtp.mailfrom", "smtp.mail")}
# which property names an account or a mailbox, and not just a domain
_ACCOUNT = {"auth": ("smtp.auth",), "spf": ("smtp.mailfrom", "smtp.mail")}
MESSAGE_ID = re.compile(r"<[^<>\s]{1,500}>")
_RECIPIENT = re.compile(r"[^<>@]*<\s*([^<>\s]+)\s*>|([^<>\s]+)")
_DAY = 86400.0  # seconds: so far may clocks and time zones be off
_LMTP = re.compile(r"(?:from \S+ )?by \S+ with LMTPS?A?\b", re.I)
_Check = tuple[str, str, dict[str, str]]  # method, outcome, properties


def wanted_proof(value: object) -> str:
    """The setting as one of ALWAYS, WHEN_CHECKED and NEVER; yes and no are understood. ValueError for anything else."""
    word = str(value).strip().lower()
    word = _WORDS.get(word, word)
    if word not in (ALWAYS, WHEN_CHECKED, NEVER):
        raise ValueError(f"require_authentication must be {ALWAYS}, {WHEN_CHECKED} or {NEVER}, not {value!r}")
    return word


def distrust(
    headers: Sequence[tuple[str, str]], address: str, *, server: str | None, our_domain: str, below: bool = False
) -> str | None:
    """Why a mail does not prove that it is from this address; None when it does.

    `headers` are those of incoming.EVIDENCE, topmost first. `server` is the name our own server writes its results with.
    `below`: it writes them below its Received line, and removes any of that name that came with the mail.
    """
    if not server:
        named = next((_signed_by(value) for name, value in headers if name == "authentication-results"), "")
        hint = f" (the topmost Authentication-Results is of {named!r})" if named else ""
        return f"authserv_id is not set, so that no sender can be proven{hint}"
    known = server.lower() in KNOWN
    checks = _our_checks(headers, server, below=below)
    if checks is None:
        return f"no Authentication-Results of {server} stand above the Received line of our server"
    domain = address.rpartition("@")[2].lower()
    seen = ", ".join(f"{method}={outcome}" for method, outcome, _ in checks) or "none"
    if any(method == "dmarc" and outcome == "fail" for method, outcome, _ in checks):
        return f"the mail server could not confirm the sender ({seen})"
    accounts = _accounts(checks, our_domain.lower())
    if any(one != address.lower() and (method == "auth" or _in_domain(one, domain)) for method, one in accounts):
        return f"the mail was sent by another account ({seen})"
    if ("auth", address.lower()) in accounts:
        return None
    if domain == our_domain.lower() and not known:
        return f"the mail is from our own domain, and its sender has not logged in as {address} ({seen})"
    for method, outcome, properties in checks:
        if outcome == "pass" and any(_covers(properties.get(name, ""), domain) for name in _PROOF.get(method, ())):
            return None
    return f"the mail server could not confirm the sender ({seen})"


def misuse(
    headers: Sequence[tuple[str, str]], address: str, *, server: str, our_addresses: Collection[str], our_domain: str,
    now: float, days: int, below: bool = False,
) -> str | None:  # fmt: skip
    """Why a proven mail (see `distrust`) may have been written for others, or sent before; None when it was not.

    Its sender counts for us when one of our addresses is in To or Cc, and its Date (of the last `days`; 0: any) and its
    Message-ID are there once. Where only a signature proves the sender, it must cover these headers and the subject.
    """
    fields: dict[str, list[str]] = {}
    for name, value in headers:
        fields.setdefault(name, []).append(value)
    checks = _our_checks(headers, server, below=below) or []
    domain = address.rpartition("@")[2].lower()
    came_directly = ("auth", address.lower()) in _accounts(checks, our_domain.lower()) or any(
        method == "spf" and outcome == "pass" and any(_covers(shown.get(one, ""), domain) for one in _PROOF["spf"])
        for method, outcome, shown in checks
    )
    signatures = [] if came_directly else [_tags(value) for value in fields.get("dkim-signature", [])]
    if not came_directly and (not signatures or any("l" in tags for tags in signatures)):
        return "no DKIM signature covers the whole mail"

    def as_signed(name: str) -> list[str]:
        """The values of a header; none when one of them could have been added to the signed mail."""
        found = fields.get(name, [])
        covered = (sum(one.strip().lower() == name for one in tags.get("h", "").split(":")) for tags in signatures)
        return found if all(len(found) <= times for times in covered) else []

    recipients = {one for value in (*as_signed("to"), *as_signed("cc")) for one in _recipients(value)}
    if not any(_without_tag(one) in our_addresses or one in our_addresses for one in recipients):
        return "its To and Cc, as far as they are signed, name none of our addresses (address, aliases)"
    if fields.get("subject") and not as_signed("subject"):
        return "its Subject is not signed"
    dates, names = as_signed("date"), as_signed("message-id")
    if len(dates) != 1 or len(names) != 1 or message_id_in(names[0]) is None:
        return "its Date or its Message-ID is missing, there twice or not signed"
    sent_at = time_of(dates[0])
    if sent_at is None or sent_at > now + _DAY or (days and sent_at < now - (days + 1) * _DAY):
        return f"its Date is in the future, or more than {days} days ago"
    return None


def time_of(date: str) -> float | None:
    """The time (Unix seconds) that a Date header names; None when it names none."""
    try:
        parts = parsedate_tz(date)
        return float(mktime_tz(parts)) if parts else None
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def message_id_in(header: str) -> str | None:
    """The id in a Message-ID header, in angle brackets; None when it can't be read."""
    if found := MESSAGE_ID.search(header):
        return found[0]
    return f"<{header}>" if re.fullmatch(r"[^<>\s]{1,500}", header) else None


def _recipients(header: str) -> Iterator[str]:
    """The addresses in a To or Cc, in small letters; one in a name, or before another in brackets, is none."""
    for part in re.split("[,;]", re.sub(r'"(?:\\.|[^"\\])*"', "", _without_comments(header))):
        if found := _RECIPIENT.fullmatch(part.rpartition(":")[2].strip()):  # before the colon: the name of a group
            yield (found[1] or found[2]).lower()


def _without_tag(address: str) -> str:
    """agent@example.org of agent+anything@example.org."""
    mailbox, _, domain = address.rpartition("@")
    return f"{mailbox.partition('+')[0]}@{domain}"


def _tags(signature: str) -> dict[str, str]:
    """The tags of a DKIM-Signature (RFC 6376)."""
    pairs = (part.partition("=") for part in signature.split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _our_checks(headers: Sequence[tuple[str, str]], server: str, *, below: bool) -> list[_Check] | None:
    """The checks that our own server has noted; None when it has noted nothing."""
    results = _results(headers, server, below=below or server.lower() in KNOWN)
    return [check for value in results for check in _checks(value)] if results else None


def _results(headers: Sequence[tuple[str, str]], server: str, *, below: bool) -> list[str]:
    """The results that only our own server can have written."""
    found = []
    for name, value in headers:
        if name == "received":
            if not below and not _LMTP.match(" ".join(_without_comments(value).split())):
                break  # delivery to the mailbox (LMTP) is our server's own; other servers' headers begin here
        elif name == "authentication-results" and _signed_by(value).lower() == server.lower():
            found.append(value)
    return found


def _accounts(checks: Sequence[_Check], our_domain: str) -> set[tuple[str, str]]:
    """(method, address) of the accounts that passed checks name, in small letters; a bare login is one of our domain."""
    found = set()
    for method, outcome, properties in checks:
        for name in _ACCOUNT.get(method, ()) if outcome == "pass" else ():
            value = properties.get(name, "").strip("<>").lower()
            if method == "auth" and value and "@" not in value:
                value = f"{value}@{our_domain}"
            if value.rpartition("@")[0]:
                found.add((method, value))
    return found


def _in_domain(account: str, domain: str) -> bool:
    return account.rpartition("@")[2] == domain


def _signed_by(header: str) -> str:
    words = _without_comments(header).partition(";")[0].split()
    return words[0].strip('"') if words else ""


def _checks(header: str) -> Iterator[_Check]:
    """(method, outcome, properties) of every check in a header; none for "server; none"."""
    for clause in _hidden_quotes(_without_comments(header)).split(";")[1:]:
        pairs = re.findall(r"([\w.\-/]+)\s*=\s*([^\s;]+)", clause)
        if pairs:
            (method, outcome), *rest = pairs
            yield (method.partition("/")[0].lower(), outcome.lower(), {name.lower(): value for name, value in rest})


def _hidden_quotes(text: str) -> str:
    """The text with quoted parts replaced by meaningless characters.

    A sender chooses their content (the mailbox of an envelope, a reason), and could write a check or a domain.
    """
    signs: list[str] = []
    quoted = escaped = False
    for sign in text:
        if sign == '"' and not escaped:
            quoted = not quoted
        elif quoted:
            escaped = sign == "\\" and not escaped
            signs.append(chr(0xE000 + ord(sign)) if ord(sign) < 0x100 else sign)
        else:
            signs.append(sign)
    return "".join(signs)


def _without_comments(header: str) -> str:
    """A header without its (comments), which may hold anything; a quoted text stays as it is."""
    signs: list[str] = []
    depth, quoted, escaped = 0, False, False
    for sign in header:
        plain = not escaped
        escaped = plain and sign == "\\" and (quoted or depth > 0)
        if plain and sign == '"' and not depth:
            quoted = not quoted
        elif plain and sign == "(" and not quoted:
            depth += 1
        if not depth:
            signs.append(sign)
        elif plain and sign == ")":
            depth -= 1
            signs.append(" ")
    return "".join(signs)


def _covers(proven: str, domain: str) -> bool:
    """Whether a proven domain is this one, or a parent of it; without a list of public suffixes that is near enough."""
    proven = proven.rpartition("@")[2].strip("<>").rstrip(".").lower()
    return bool(proven) and (proven == domain or ("." in proven and domain.endswith("." + proven)))
