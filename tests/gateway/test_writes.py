"""How often a message is written to the disk: each commit costs, and a phone has many messages."""

from __future__ import annotations

from tests.support.commits import commits
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab


def test_a_message_costs_five_commits_at_most(model: Echo) -> None:
    lab = PlainLab()
    try:
        # of several, since the index, marks and the titler write now and then, too, and checkpoints begin the WAL anew
        found = []
        with running(lab, model) as gateway:

            def is_quiet() -> bool:
                sent = "SELECT 1 FROM gateway_outbox WHERE sent_at IS NULL"
                return len(lab.shown()) == len(found) + 1 and not gateway.db.sql(sent)

            for number in range(12):
                salt, before = commits(gateway.db.path)
                lab.say(f"number {number}")
                until(is_quiet, str(lab.shown()))
                now, after = commits(gateway.db.path)
                found.append(after - before if now == salt else 99)
        assert min(found) <= 5, found
    finally:
        lab.close()
