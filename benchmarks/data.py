"""The texts everything is measured on: the corpus, a sample to append, many short sessions, and what is true
of them.

All of it is made once, by corpus.py or from its output, and kept in the cache directory.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import corpus

DEBIAN_PACKAGES = (
    "manpages",
    "manpages-dev",
    "manpages-zh",
    "manpages-ja",
    "manpages-vi",
    "debian-handbook",
    "debian-reference-zh-cn",
    "debian-reference-ja",
    "installation-guide-amd64",
    "linux-doc-6.1",
    "postgresql-doc-15",
    "python3.11-doc",
    "git-doc",
)
SAMPLE_SESSIONS = 260  # about 18,000 messages that are not in S
MANY_SESSIONS = 9_820
TRUTH_CLASSES = ("cjk2", "cjk3plus", "infix_substring", "code_identifier")


class Data:
    """Paths of the texts; each is made when first asked for."""

    def __init__(self, given: Path | None, cache: Path, say: Callable[[str], None]) -> None:
        self._given, self._cache, self._say = given, cache / "data", say
        self._cache.mkdir(parents=True, exist_ok=True)

    def _file(self, name: str, make: Callable[[Path], None]) -> Path:
        if self._given and (self._given / name).exists():
            return self._given / name
        path = self._cache / name
        if not path.exists():
            self._say(f"making {name}")
            unfinished = path.with_name("unfinished-" + name)
            make(unfinished)
            unfinished.rename(path)
        return path

    def pool(self) -> Path:
        return self._file("pool.jsonl.gz", lambda out: _corpus("pool", "--out", out))

    def sessions(self, size: str) -> Path:
        """The corpus of a size as JSON Lines (XS or S; L is made on the way and never written down)."""
        return self._file(
            f"{size}.jsonl", lambda out: _corpus("gen", "--pool", self.pool(), "--size", size, "--out", out)
        )

    def queries(self) -> Path:
        return self._file("queries.json", lambda out: _corpus("queries", "--corpus", self.sessions("S"), "--out", out))

    def sample(self) -> Path:
        """Sessions that come after those of S: what is appended to a loaded store."""
        low = corpus.SIZES["S"]
        bounds = ("--lo", str(low), "--hi", str(low + SAMPLE_SESSIONS))
        return self._file("sample.jsonl", lambda out: _corpus("gen", "--pool", self.pool(), *bounds, "--out", out))

    def many(self) -> Path:
        return self._file("many.jsonl", lambda out: _write_many(out, self.sessions("XS")))

    def truth(self, size: str) -> Path:
        return self._file(f"truth-{size}.json", lambda out: _write_truth(out, self.sessions(size), self.queries()))

    def facts(self, size: str) -> dict[str, Any]:
        """Counts of a corpus (sessions, messages, text_bytes, median_start), its long_session of
        long_messages, and a phrase of that session to search for.
        """
        path = self._file(f"facts-{size}.json", lambda out: _write_facts(out, self.sessions(size)))
        return dict(json.loads(path.read_text()))


def _corpus(*arguments: str | Path) -> None:
    command = [sys.executable, str(Path(corpus.__file__)), *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def missing_packages() -> list[str]:
    """Which of the documentation packages the reference figures come from are not on this machine."""
    if not shutil.which("dpkg-query"):
        return list(DEBIAN_PACKAGES)
    command = ["dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", *DEBIAN_PACKAGES]
    out = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    there = {line.split()[0] for line in out.splitlines() if line.endswith(" installed")}
    return [name for name in DEBIAN_PACKAGES if name not in there]


def _write_facts(out: Path, source: Path) -> None:
    starts, messages, text = [], 0, 0
    long_session, long_messages, phrase = "", 0, ""
    for session in corpus.read_jsonl(source):
        count = len(session["messages"])
        starts.append(session["started_at"])
        messages += count
        text += sum(corpus.raw_bytes(message) for message in session["messages"])
        if abs(count - 521) < abs(long_messages - 521):
            long_session, long_messages, phrase = session["id"], count, _phrase(session)
    starts.sort()
    facts = {
        "sessions": len(starts),
        "messages": messages,
        "text_bytes": text,
        "median_start": starts[len(starts) // 2],
        "long_session": long_session,
        "long_messages": long_messages,
        "phrase": phrase,
    }
    out.write_text(json.dumps(facts))


def _phrase(session: dict[str, Any]) -> str:
    """Four plain words in a row from an answer of the session, quoted."""
    for message in session["messages"]:
        if message["role"] == "assistant" and (found := re.search(r"\b[a-z]+( [a-z]+){3}\b", message["content"] or "")):
            return f'"{found[0]}"'
    return session["id"]


def _write_truth(out: Path, source: Path, queries: Path) -> None:
    asked = json.loads(queries.read_text(encoding="utf-8"))["queries"]
    truth: dict[str, dict[str, list[tuple[str, int]]]] = {name: {} for name in TRUTH_CLASSES}
    lowered = [(name, query, query.lower()) for name in TRUTH_CLASSES for query in asked[name]]
    for session in corpus.read_jsonl(source):
        for place, message in enumerate(session["messages"]):
            calls = json.dumps(message["tool_calls"], ensure_ascii=False) if message.get("tool_calls") else ""
            text = f"{message.get('content') or ''} {message.get('tool_name') or ''} {calls}".lower()
            for name, query, low in lowered:
                if low in text:
                    truth[name].setdefault(query, []).append((session["id"], place))
    out.write_text(json.dumps(truth, ensure_ascii=False), encoding="utf-8")


def _write_many(out: Path, source: Path) -> None:
    """9,820 sessions of two short messages, with system prompts as long as in the corpus; each twelfth
    session continues a compressed one.
    """
    rng = random.Random("many")
    some = list(corpus.read_jsonl(source))
    words = sorted({word for session in some for word in (session["title"] or "").split()})
    previous: dict[str, Any] | None = None
    with out.open("w", encoding="utf-8") as file:
        for number in range(MANY_SESSIONS):
            start = corpus.BASE_TS - (MANY_SESSIONS - number) * 3600.0
            stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime(start))
            title = " ".join(rng.sample(words, 3)) + f" {number}"
            messages = [
                {"role": "user", "content": f"Tell me about {title}", "timestamp": start + 5},
                {"role": "assistant", "content": " ".join(rng.sample(words, 12)), "timestamp": start + 9},
            ]
            session = {
                "id": f"{stamp}_{rng.getrandbits(32):08x}",
                "source": rng.choice(["cli", "telegram", "discord"]),
                "user_id": None,
                "model": corpus.MODELS[0],
                "model_config": None,
                "parent_session_id": None,
                "system_prompt": some[number % len(some)]["system_prompt"] + title,
                "started_at": start,
                "ended_at": start + 20,
                "end_reason": "user_exit",
                "title": title,
                "messages": messages,
            }
            if number % 12 == 4:
                session["end_reason"] = "compression"
            if number % 12 == 5 and previous:
                session |= {"parent_session_id": previous["id"], "title": previous["title"] + " #2"}
            previous = session
            file.write(json.dumps(session, ensure_ascii=False) + os.linesep)
