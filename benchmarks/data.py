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

QUESTIONS = (
    "how do I make the {0} of a {1} work?",
    "what did we say about {0} and {1} last week?",
    "why does my {0} not do what it should with the {1}",
    "where did I put the {0} for the {1}?",
    "when was it that you told me to change the {0} {1}",
    "do you remember the {0} that had a problem with {1}?",
    "which {0} did I use to get rid of the {1} in {2}?",
    "can I do a {0} without a {1}?",
    "what is the difference between a {0} and a {1}",
    "how did you fix the {0} in the {1} when I asked about {2}?",
    "who said that the {0} is not a {1}",
    "is there a way to do {0} in one {1}?",
    "I had a question about a {0} and its {1}, what was the answer?",
    "tell me what we did about the {0} and {1}",
    "what was the name of the {0} that I have to do before the {1}",
    "did I ever ask you about a {0}?",
    "please show me how to use {0} with {1} and {2}",
    "what happens if a {0} is in the {1}",
    "how long does it take to do the {0} on my {1}?",
    "what should I do about the {0} if I do not have any {1}?",
)


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

    def queries(self, size: str) -> Path:
        """What is searched for: words of S, but in XS rare words of its own, as few of the others' are in it."""
        if size == "XS":
            return self._file(
                "queries-XS.json", lambda out: _write_own_queries(out, self.queries("S"), self.sessions("XS"))
            )
        return self._file("queries.json", lambda out: _corpus("queries", "--corpus", self.sessions("S"), "--out", out))

    def questions(self, size: str) -> Path:
        """What someone would ask, in whole sentences, about words of the corpus (for L those of S)."""
        of = "XS" if size == "XS" else "S"
        return self._file(f"questions-{of}.json", lambda out: _write_questions(out, self.sessions(of)))

    def sample(self) -> Path:
        """Sessions that come after those of S: what is appended to a loaded store."""
        low = corpus.SIZES["S"]
        bounds = ("--lo", str(low), "--hi", str(low + SAMPLE_SESSIONS))
        return self._file("sample.jsonl", lambda out: _corpus("gen", "--pool", self.pool(), *bounds, "--out", out))

    def many(self) -> Path:
        return self._file("many.jsonl", lambda out: _write_many(out, self.sessions("XS")))

    def truth(self, size: str) -> Path:
        name = "truth-of-XS.json" if size == "XS" else f"truth-{size}.json"
        return self._file(name, lambda out: _write_truth(out, self.sessions(size), self.queries(size)))

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


def _held_by(source: Path) -> tuple[int, dict[str, int]]:
    """How many messages a corpus has, and how many of them hold each word."""
    messages = 0
    held: dict[str, int] = {}
    for session in corpus.read_jsonl(source):
        for message in session["messages"]:
            messages += 1
            for word in set(re.findall(r"[^\W_]+", (message.get("content") or "").lower())):
                held[word] = held.get(word, 0) + 1
    return messages, {w: n for w, n in held.items() if w.isascii() and w.isalpha() and 4 <= len(w) <= 12}


def _write_own_queries(out: Path, of_s: Path, source: Path) -> None:
    asked = json.loads(of_s.read_text(encoding="utf-8"))
    rare = sorted(word for word, count in _held_by(source)[1].items() if 2 <= count <= 4)
    asked["queries"]["rare_term"] = random.Random("rare").sample(rare, 20)
    out.write_text(json.dumps(asked, ensure_ascii=False), encoding="utf-8")


def _write_questions(out: Path, source: Path) -> None:
    """Each pattern with words that a message in fifty to a message in five hundred holds."""
    messages, held = _held_by(source)
    words = sorted(word for word, count in held.items() if messages * 0.002 < count < messages * 0.02)
    rng = random.Random("questions")
    asked = [pattern.format(*rng.sample(words, 3)) for pattern in QUESTIONS]
    out.write_text(json.dumps(asked, ensure_ascii=False), encoding="utf-8")


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
