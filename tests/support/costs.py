"""What each test costs: `pytest --costs` prints, for every file and for the dearest tests, seconds of processor and of clock.

Processor time counts this process and the children a test has waited for; on a busy machine it says more than the clock.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.forking import processor_seconds

_SHOWN = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", type=int, nargs="?", const=_SHOWN, metavar="N", help="print what the dearest N files and tests cost"
    )


def _processor() -> float:
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in parts) + processor_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    # the report of the tear-down is made before this ends: the cost of a test travels with the next report of its own
    item.stash[_BEGUN] = (time.monotonic(), _processor())
    return (yield)


_BEGUN = pytest.StashKey[tuple[float, float]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if call.when == "teardown" and item.config.getoption("costs") is not None:
        clock, processor = item.stash[_BEGUN]
        report.user_properties.append(("cost", (time.monotonic() - clock, _processor() - processor)))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    shown = terminalreporter.config.getoption("costs")
    if shown is None:
        return
    tests: dict[str, tuple[float, float]] = {}
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, cost in getattr(report, "user_properties", ()):
                if name == "cost":
                    tests[report.nodeid] = (cost[0], cost[1])
                    for n in (0, 1):
                        files[report.nodeid.split("::")[0]][n] += cost[n]
    write = terminalreporter.write_line
    for title, costs in (("files", files), ("tests", tests)):
        write(f"dearest {title}: seconds of clock, of processor")
        dearest = sorted(costs.items(), key=lambda pair: -max(pair[1]))
        for name, (clock, processor) in dearest[:shown]:
            write(f"{clock:8.1f} {processor:8.1f}  {name}")
    write(
        f"{sum(one[0] for one in tests.values()):8.1f} {sum(one[1] for one in tests.values()):8.1f}  all {len(tests)} tests"
    )
