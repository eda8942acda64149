"""An agent of your own on the Hermes record: every word is stored before the next request goes out.

    OPENAI_BASE_URL=http://localhost:11434/v1 MODEL=llama3.2 python examples/agent.py "What did we decide yesterday?"
    python examples/agent.py --continue "And why?"

The session is a session like any other: `hermes sessions list` shows it, and `hermes -r ID` continues it in the
terminal (`hermes -c` alone takes the latest one that began there).
"""

from __future__ import annotations

import os
import sys
import time
import uuid

import httpx

from hermes_state import SessionDB

SOURCE = "example"  # the program's own name; `hermes sessions list --source example` lists its sessions


def ask(messages: list[dict[str, object]]) -> str:
    """One request to an OpenAI-compatible model."""
    answer = httpx.post(
        os.environ.get("OPENAI_BASE_URL", "http://localhost:11434/v1") + "/chat/completions",
        headers={"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}"},
        json={"model": os.environ.get("MODEL", "llama3.2"), "messages": messages},
        timeout=120,
    )
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def main() -> None:
    """One question, one answer, in a new session or in the latest one."""
    words = sys.argv[1:]
    with SessionDB() as db:
        latest = db.list_sessions_rich(source=SOURCE, limit=1, order_by_last_active=True)
        if words[:1] == ["--continue"] and latest:
            words, session_id = words[1:], latest[0]["id"]
        else:
            session_id = f"{time.strftime('%Y%m%d_%H%M%S')}_{uuid.uuid4().hex[:6]}"
            db.create_session(session_id, SOURCE, model=os.environ.get("MODEL", "llama3.2"))
        db.append_message(session_id, "user", " ".join(words))
        reply = ask(db.get_messages_as_conversation(session_id))
        db.append_message(session_id, "assistant", reply)
    print(reply)


if __name__ == "__main__":
    main()
