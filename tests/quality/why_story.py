"""A small shop grows in a repository: three programs and its owner change it, over twenty days.

Every step changes the real files, writes the record its program would have kept, and is committed an hour later.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.importing import lines

CART = '''\
"""A shopping cart."""

CENTS = 2


class Cart:
    def __init__(self):
        self.rows = []

    def add(self, name, price, qty=1):
        self.rows.append((name, price, qty))

    def total(self):
        return sum(price * qty for _, price, qty in self.rows)

    def is_empty(self):
        return not self.rows
'''
PRICE = """\
BULK = 10
BULK_DISCOUNT = 0.05


def discounted(price, qty):
    if qty >= BULK:
        return price * (1 - BULK_DISCOUNT)
    return price
"""
API = """\
from flask import Flask, jsonify, request

from shop.cart import Cart

app = Flask(__name__)
cart = Cart()


@app.post("/items")
def add_item():
    body = request.get_json()
    cart.add(body["name"], body["price"], body.get("qty", 1))
    return jsonify(rows=len(cart.rows)), 201


@app.get("/total")
def show_total():
    return jsonify(total=cart.total())
"""
PAGE = """\
const list = document.querySelector("#items");

async function load() {
  const answer = await fetch("/total");
  const { total } = await answer.json();
  document.title = `Cart: ${total}`;
}

load();
"""
BLOG_CART = """\
class Cart:
    def total(self):
        return sum(post.price for post in self.posts)

    def is_empty(self):
        return not self.rows
"""


@dataclass
class Conversation:
    """The record of one session, as its program wrote it."""

    program: str
    name: str
    cwd: Path
    day: int
    records: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0

    def at(self) -> str:
        """The time of the next record."""
        self.number += 1
        return f"2026-03-{self.day:02}T10:{self.number:02}:00.000Z"


@dataclass
class Story:
    """The repository, and the histories that the three programs keep about it."""

    root: Path
    name: str = "shop"  # of the repository, and of the folder its code is in
    repository: Path = field(init=False)
    conversations: list[Conversation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.repository = self.root / "work" / self.name
        (self.repository / self.name).mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str, day: int = 1, cwd: Path | None = None) -> str:
        """Run git as the owner, on this day at eleven."""
        when = f"2026-03-{day:02}T11:00:00Z"
        who = {"GIT_AUTHOR_NAME": "Owner", "GIT_AUTHOR_EMAIL": "o@example.org", "GIT_AUTHOR_DATE": when}
        who |= {key.replace("AUTHOR", "COMMITTER"): value for key, value in who.items()}
        done = subprocess.run(
            ["git", *words],
            cwd=cwd or self.repository,
            env=os.environ | who,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def commit(self, day: int) -> None:
        """Commit everything."""
        self.git("add", "-A", day=day)
        self.git("commit", "-q", "-m", f"day {day}", day=day)

    def begin(self, program: str, name: str, day: int, cwd: Path | None = None) -> Conversation:
        """A new session of one of the three programs."""
        begun = Conversation(program, name, cwd or self.repository, day)
        self.conversations.append(begun)
        return begun

    def write(self, path: str, text: str) -> None:
        """The owner writes a file by hand."""
        file = self.repository / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def replace(self, path: str, old: str, new: str) -> None:
        """The owner changes a passage by hand."""
        text = (self.repository / path).read_text()
        assert old in text, (path, old)
        self.write(path, text.replace(old, new))


def claude(
    story: Story, talk: Conversation, request: str, words: str, calls: list[dict[str, Any]], failed: str = ""
) -> None:
    """A turn of Claude Code: its request, its words with the calls, their results."""
    session = _uuid(talk)
    parent = talk.records[-1]["uuid"] if talk.records else None
    head = {"sessionId": session, "cwd": str(talk.cwd), "isSidechain": False, "gitBranch": "main"}

    def add(kind: str, message: dict[str, Any]) -> None:
        nonlocal parent
        moment = talk.at()
        record = {"type": kind, "uuid": f"{session[:8]}-{talk.number}", "parentUuid": parent, "timestamp": moment}
        talk.records.append(record | head | {"message": message})
        parent = record["uuid"]

    add("user", {"role": "user", "content": request})
    uses = [{"type": "tool_use", "id": f"{session[:8]}_{talk.number}_{n}", **call} for n, call in enumerate(calls)]
    reply = {"id": f"m{session[:8]}{talk.number}", "role": "assistant", "model": "claude-opus-4"}
    add("assistant", reply | {"content": [{"type": "text", "text": words}, *uses]})
    for use in uses:
        result = {
            "type": "tool_result",
            "tool_use_id": use["id"],
            "content": failed or "done",
            "is_error": bool(failed),
        }
        add("user", {"role": "user", "content": [result]})
    add("assistant", reply | {"id": reply["id"] + "b", "content": [{"type": "text", "text": "Finished."}]})
    if not failed:
        for call in calls:
            _apply_claude(call)


def _apply_claude(call: dict[str, Any]) -> None:
    given = call["input"]
    file = Path(given["file_path"])
    if call["name"] == "Write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(given["content"])
        return
    for one in given.get("edits", [given]):
        text = file.read_text()
        assert one["old_string"] in text, one
        file.write_text(text.replace(one["old_string"], one["new_string"]))


def codex(
    story: Story, talk: Conversation, request: str, words: str, patch: str, after: list[tuple[str, str]] = ()
) -> None:  # type: ignore[assignment]
    """A turn of Codex with one patch; `after` are commands it ran then, each with its output."""
    if not talk.records:
        meta = {"id": _uuid(talk), "timestamp": f"2026-03-{talk.day:02}T10:00:00.000Z", "cwd": str(talk.cwd)}
        talk.records.append({"timestamp": meta["timestamp"], "type": "session_meta", "payload": meta})

    def add(**payload: Any) -> None:
        talk.records.append({"timestamp": talk.at(), "type": "response_item", "payload": payload})

    add(type="message", role="user", content=[{"type": "input_text", "text": request}])
    add(type="message", role="assistant", content=[{"type": "output_text", "text": words}])
    call = f"call_{talk.number}"
    add(type="custom_tool_call", name="apply_patch", input=patch, call_id=call)
    add(
        type="custom_tool_call_output",
        call_id=call,
        output=json.dumps({"output": "Success.", "metadata": {"exit_code": 0}}),
    )
    for n, (command, output) in enumerate(after):
        add(
            type="function_call",
            name="shell",
            arguments=json.dumps({"command": ["bash", "-lc", command]}),
            call_id=f"{call}_{n}",
        )
        add(type="function_call_output", call_id=f"{call}_{n}", output=output)
    add(type="message", role="assistant", content=[{"type": "output_text", "text": "Finished."}])
    _apply_patch(talk.cwd, patch)


def _apply_patch(root: Path, patch: str) -> None:
    """Apply a patch of Codex's form whose hunks each name their place exactly."""
    file, old, new = Path(), [], []  # type: ignore[var-annotated]

    def change() -> None:
        if old or new:
            before, after = "".join(line + "\n" for line in old), "".join(line + "\n" for line in new)
            text = file.read_text() if file.exists() else ""
            assert before in text, before
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace(before, after, 1) if before else after)
        old.clear()
        new.clear()

    for line in patch.splitlines():
        if line.startswith(("*** Add File: ", "*** Update File: ")):
            change()
            file = root / line.partition(": ")[2]
        elif line.startswith(("@@", "***")):
            change()
        else:
            if line[:1] in "- ":
                old.append(line[1:])
            if line[:1] in "+ ":
                new.append(line[1:])
    change()


def gemini(story: Story, talk: Conversation, request: str, words: str, name: str, args: dict[str, Any]) -> None:
    """A turn of Gemini CLI with one call that writes or replaces."""
    if not talk.records:
        start = f"2026-03-{talk.day:02}T10:00:00.000Z"
        talk.records.append({"sessionId": _uuid(talk), "projectHash": "0", "startTime": start, "lastUpdated": start})
    talk.records.append(
        {"id": f"u{talk.number}", "timestamp": talk.at(), "type": "user", "content": [{"text": request}]}
    )
    result = [
        {
            "functionResponse": {
                "id": f"c{talk.number}",
                "name": name,
                "response": {"output": "Successfully modified file."},
            }
        }
    ]
    call = {"id": f"c{talk.number}", "name": name, "args": args, "status": "success", "result": result}
    reply = {
        "id": f"g{talk.number}",
        "timestamp": talk.at(),
        "type": "gemini",
        "content": words,
        "model": "gemini-3-pro",
    }
    talk.records.append(reply | {"toolCalls": [call]})
    file = Path(args["file_path"])
    if name == "write_file":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(args["content"])
    else:
        text = file.read_text()
        assert args["old_string"] in text, args
        file.write_text(text.replace(args["old_string"], args["new_string"]))


def _uuid(talk: Conversation) -> str:
    digest = f"{sum(map(ord, talk.name)) * 7919 % 0xFFFFFFFF:08x}"
    return f"{digest}-{talk.day:04}-4333-8444-{digest}0000"


def tell(root: Path) -> Story:
    """The whole story; the last changes are not committed."""
    story = Story(root)
    shop = story.repository
    cart, api = str(shop / "shop/cart.py"), str(shop / "shop/api.py")

    def edit(path: str, old: str, new: str) -> dict[str, Any]:
        return {"name": "Edit", "input": {"file_path": path, "old_string": old, "new_string": new}}

    def written(path: str, text: str) -> dict[str, Any]:
        return {"name": "Write", "input": {"file_path": path, "content": text}}

    blog = root / "work" / "blog"
    (blog / "shop").mkdir(parents=True)
    story.git("init", "-q", cwd=blog)
    toy = story.begin("claude", "toy", 1, blog)
    claude(story, toy, "a toy cart for the blog", "A toy.", [written(str(blog / "shop/cart.py"), BLOG_CART)])

    story.write("LICENSE", "All rights reserved by the owner of the shop.\n")
    basics = story.begin("claude", "basics", 1)
    claude(story, basics, "Write a cart with add and total", "I start with the cart.", [written(cart, CART)])
    claude(
        story, basics, "the total has to be rounded to cents", "Prices are floats, so I round once, at the end.",
        [edit(cart, "return sum(price * qty for _, price, qty in self.rows)",
              "exact = sum(price * qty for _, price, qty in self.rows)\n        return round(exact, CENTS)")],
    )  # fmt: skip
    story.commit(1)

    rules = story.begin("codex", "rules", 2)
    patch = (
        "*** Begin Patch\n*** Add File: shop/price.py\n"
        + "".join(f"+{line}\n" for line in PRICE.splitlines())
        + "*** End Patch"
    )
    codex(story, rules, "five per cent off from ten pieces on", "A module of its own for prices.", patch,
          [("python -m pytest -q", json.dumps({"output": "1 failed", "metadata": {"exit_code": 1}})),
           ("python -m pytest -q", json.dumps({"output": "3 passed", "metadata": {"exit_code": 0}}))])  # fmt: skip
    codex(story, rules, "shipping is free above fifty", "Shipping goes beside the discount.", """\
*** Begin Patch
*** Update File: shop/price.py
@@
         return price * (1 - BULK_DISCOUNT)
     return price
+
+
+def shipping(total):
+    return 0 if total > FREE_FROM else SHIPPING
@@
 BULK_DISCOUNT = 0.05
+FREE_FROM = 50
+SHIPPING = 4.90
*** End Patch""")  # fmt: skip
    story.commit(2)

    http = story.begin("gemini", "http", 3)
    gemini(
        story,
        http,
        "expose the cart over HTTP",
        "Flask is enough here.",
        "write_file",
        {"file_path": api, "content": API},
    )
    gemini(
        story, http, "nobody may order zero or less", "I refuse it with 422.", "replace",
        {"file_path": api, "old_string": "    body = request.get_json()\n",
         "new_string": "    body = request.get_json()\n    if body.get(\"qty\", 1) < 1:\n        return jsonify(error=\"quantity\"), 422\n"},
    )  # fmt: skip
    story.commit(3)

    story.replace("shop/cart.py", "CENTS = 2\n", "CENTS = 2  # finance asked for two digits\n")
    story.replace(
        "shop/cart.py",
        "    def is_empty(self):",
        "    def clear(self):\n        self.rows.clear()\n\n    def is_empty(self):",
    )
    story.commit(4)

    coupons = story.begin("claude", "coupons", 5)
    claude(
        story, coupons, "support coupon codes", "A coupon takes a share off the sum.",
        [{"name": "MultiEdit", "input": {"file_path": cart, "edits": [
            {"old_string": "        self.rows = []\n", "new_string": "        self.rows = []\n        self.coupons = set()\n"},
            {"old_string": "        return round(exact, CENTS)", "new_string":
             "        share = sum(COUPONS[code] for code in self.coupons)\n        return round(exact * (1 - share), CENTS)"}]}},
         edit(cart, "    def clear(self):", "    def redeem(self, code):\n        self.coupons.add(code)\n\n    def clear(self):"),
         edit(str(shop / "shop/price.py"), "SHIPPING = 4.90\n", 'SHIPPING = 4.90\nCOUPONS = {"SPRING": 0.1}\n')],
    )  # fmt: skip
    claude(
        story, coupons, "at most three coupons", "I add the limit.",
        [edit(cart, "no such text", "MAX_COUPONS = 3")], failed="String to replace not found in file.",
    )  # fmt: skip
    story.replace("shop/cart.py", "\n\nclass Cart:", "MAX_COUPONS = 3\n\n\nclass Cart:")
    story.commit(5)

    story.git("mv", "shop/price.py", "shop/pricing.py", day=6)
    story.commit(6)

    story.replace(
        "shop/api.py",
        "    return jsonify(total=cart.total())",
        "    if cart:\n        return jsonify(total=cart.total())\n    return jsonify(total=0)",
    )
    story.commit(7)

    names = story.begin("codex", "names", 8)
    codex(story, names, "spell out quantity", "One word everywhere.", """\
*** Begin Patch
*** Update File: shop/cart.py
@@
-    def add(self, name, price, qty=1):
-        self.rows.append((name, price, qty))
+    def add(self, name, price, quantity=1):
+        self.rows.append((name, price, quantity))
@@
-        exact = sum(price * qty for _, price, qty in self.rows)
+        exact = sum(price * quantity for _, price, quantity in self.rows)
*** Update File: shop/api.py
@@
-    cart.add(body["name"], body["price"], body.get("qty", 1))
+    cart.add(body["name"], body["price"], body.get("quantity", 1))
*** End Patch""", [("make test", "exit code 2\\nmake: *** [test] Error 1")])  # fmt: skip
    story.commit(8)

    page = story.begin("gemini", "page", 9)
    app = str(shop / "web/app.js")
    gemini(
        story,
        page,
        "show the total in the window title",
        "A few lines of script.",
        "write_file",
        {"file_path": app, "content": PAGE},
    )
    story.commit(9)
    story.replace("web/app.js", 'const list = document.querySelector("#items");\n\n', "")
    story.commit(10)
    again = story.begin("gemini", "again", 11)
    gemini(
        story, again, "list the rows on the page", "I need the list element again.", "replace",
        {"file_path": app, "old_string": "load();\n",
         "new_string": "const list = document.querySelector(\"#items\");\n\nfunction show(rows) {\n  list.replaceChildren(...rows.map(item));\n}\n\nload();\n"},
    )  # fmt: skip
    story.commit(11)

    log = story.begin("claude", "log", 12)
    claude(story, log, "log every order to a file", "The standard logger will do.", [
        edit(api, "app = Flask(__name__)\n", "app = Flask(__name__)\nlog = logging.getLogger(__name__)\n"),
        edit(api, "from flask import", "import logging\n\nfrom flask import"),
        edit(api, "    return jsonify(rows=len(cart.rows)), 201", '    log.info("ordered %s", body["name"])\n    return jsonify(rows=len(cart.rows)), 201'),
    ])  # fmt: skip
    story.commit(12)
    story.replace("shop/api.py", 'log.info("ordered %s", body["name"])', 'log.info("ordered: %s", body["name"])')
    story.commit(13)

    taxes = story.begin("codex", "taxes", 14)
    codex(story, taxes, "add value added tax", "Tax is a rate on the discounted price.", """\
*** Begin Patch
*** Update File: shop/pricing.py
@@
 SHIPPING = 4.90
+VAT = 0.19
@@
 def shipping(total):
+    \"\"\"Shipping costs, without tax.\"\"\"
@@
     return 0 if total > FREE_FROM else SHIPPING
+
+
+def with_tax(price):
+    return price * (1 + VAT)
*** End Patch""", [("pytest tests/test_tax.py", json.dumps({"output": "1 passed", "metadata": {"exit_code": 0}}))])  # fmt: skip
    story.commit(14)

    late = story.begin("claude", "late", 20)
    claude(story, late, "a readme for newcomers", "Short, with the one command.", [
        written(str(shop / "README.md"), "# Shop\n\nStart it with `flask --app shop.api run`.\n"),
        edit(str(shop / "shop/pricing.py"), "VAT = 0.19\n", "VAT = 0.20\n"),
    ])  # fmt: skip
    return story


def histories(story: Story, home: Path) -> Iterator[Path]:
    """The files the programs keep, below a home of its own."""
    for talk in story.conversations:
        name = _uuid(talk)
        if talk.program == "claude":
            folder = "".join(c if c.isalnum() else "-" for c in str(talk.cwd))
            yield lines(home / ".claude" / "projects" / folder / f"{name}.jsonl", talk.records)
        elif talk.program == "codex":
            folder = f"2026/03/{talk.day:02}"
            file = f"rollout-2026-03-{talk.day:02}T10-00-00-{name}.jsonl"
            yield lines(home / ".codex" / "sessions" / folder / file, talk.records)
        else:
            yield lines(
                home / ".gemini" / "tmp" / "shop" / "chats" / f"session-2026-03-{talk.day:02}-{name[:8]}.jsonl",
                talk.records,
            )
