"""Rows about the gateway: many chats at once through `hermes gateway` as a process, on a platform of sockets and a fake model.

The rival takes no part: its gateway can't be given a platform of ours.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.bench import Bench, say
from benchmarks.table import Cell, Goal, Row, Section, at_most
from tests.support.echo import Echo
from tests.support.gateway_load import Outcome, load, one_by_one
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.plain import PlainLab

LATENCY = 0.05  # seconds the model thinks
KILL_EVERY = 4.0  # seconds
FEW, MANY = 10, 1500
LENGTHS = (10, 300, 1400)  # messages a conversation has when one more is said in it
TAKING_TURNS = 10  # conversations


def gateway(bench: Bench) -> Section:
    quick = bench.size == "XS"
    chats, messages, each = (200, 1500, 1500) if quick else (2000, 20_000, 3000)
    with Echo(latency=LATENCY) as model:
        whole = _run(bench, model, chats, messages)
        killed = _run(bench, model, chats, messages, kill_every=KILL_EVERY)
        few, many = (_run(bench, model, number, each) for number in (FEW, 300 if quick else MANY))
    nothing = Goal("0", lambda ours, _: ours == 0)
    return Section(
        [
            _row(f"gateway: {chats:,} chats, {messages:,} messages, a model of 50 ms: messages/s", "/s", whole.rate),
            _row("· lost, doubled or out of order", "", len(whole.wrong), nothing),
            _row("· processor time a message", "ms", whole.each),
            _row("· written to the disk a message", "kB", whole.kilobytes),
            _row("· memory at the most", "MB", max(whole.memory)),
            _row("· memory in the last third / in the middle third", "×", whole.growth, at_most(1.1, "≤ 1.1")),
            _row(f"· with kill -9 and a restart every {KILL_EVERY:g} s: messages/s", "/s", killed.rate),
            _row("· · kills", "", killed.kills),
            _row("· · lost, doubled or out of order", "", len(killed.wrong), nothing),
            _row(f"· processor time a message, {few.chats:,} chats", "ms", few.each),
            _row(f"· processor time a message, {many.chats:,} chats", "ms", many.each),
            _row("· · the ratio of the two", "×", many.each / few.each, at_most(1.5, "≤ 1.5")),
            *one_message(bench).rows,
        ]
    )


def one_message(bench: Bench) -> Section:
    """What a message costs alone, in short and long conversations."""
    with Echo() as model:
        count = 100 if bench.size == "XS" else 300
        alone = {length: _one_by_one(bench, model, length, count) for length in LENGTHS}
    short, long = alone[LENGTHS[0]], alone[LENGTHS[-1]]
    lengths = f"{LENGTHS[-1]:,} / {LENGTHS[0]:,} messages"
    rows = [row for length, outcome in alone.items() for row in _costs(length, outcome)]
    rows.append(_row(f"· processor time, {lengths}", "×", long.each / short.each))
    if short.kilobytes:
        rows.append(_row(f"· written, {lengths}", "×", long.kilobytes / short.kilobytes, at_most(1.5, "≤ 1.5")))
    else:
        say("gateway: this file system is in memory: what is written to a disk can't be measured on it")
    return Section(rows)


def _row(label: str, unit: str, value: float, goal: Goal | None = None) -> Row:
    return Row(label, unit, {"ours": Cell(value)}, goal)


def _costs(length: int, outcome: Outcome) -> list[Row]:
    """What one message costs alone, in a conversation of this length."""
    where = f"one after another, in conversations of {length:,} messages"
    rows = [_row(f"gateway: {where}: processor time a message", "ms", outcome.each, at_most(4.0, "≤ 4 ms"))]
    if outcome.kilobytes:
        rows.append(_row("· written to the disk a message", "kB", outcome.kilobytes, at_most(40.0, "≤ 40 kB")))
    return rows


def _one_by_one(bench: Bench, model: Echo, length: int, messages: int) -> Outcome:
    say(f"gateway: {messages:,} messages one after another in conversations of {length:,}")
    lab = PlainLab()
    bench.cache.home.mkdir(parents=True, exist_ok=True)
    no_brake = {"brake": {"per_minute": 0, "alike": 0}}
    with tempfile.TemporaryDirectory(dir=bench.cache.home) as folder:
        home = Path(folder) / "home"
        process = GatewayProcess(home, [lab], model.base_url, display={"busy": "queue"}, gateway=no_brake)
        outcome = one_by_one(process, lab, length=length, chats=TAKING_TURNS, messages=messages)
    lab.close()
    return outcome


def _run(bench: Bench, model: Echo, chats: int, messages: int, kill_every: float | None = None) -> Outcome:
    say(f"gateway: {chats:,} chats, {messages:,} messages{', killed again and again' if kill_every else ''}")
    lab = PlainLab()
    bench.cache.home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench.cache.home) as folder:
        process = GatewayProcess(Path(folder) / "home", [lab], model.base_url, display={"busy": "queue"})
        outcome = load(process, lab, chats=chats, messages=messages, kill_every=kill_every, timeout=3600)
    lab.close()
    return outcome
