"""axe-core (npm, Deque Systems) in a page: what makes it hard to use for people with a disability.

A quick run that does not have it finds nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.support.browser import Browser
from tests.support.environments import at_hand, npm, npm_name

PACKAGES = ["axe-core@4.10.3"]
_SERIOUS = ("serious", "critical")


@cache
def _source() -> str:
    folder = npm("axe-core", PACKAGES)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


def serious(browser: Browser) -> list[str]:
    """The serious findings in the page as it is now, a line each."""
    if not at_hand(npm_name("axe-core", PACKAGES)):  # a quick run that does not have it
        return []
    if not browser.value("typeof window.axe === 'object'"):
        browser.call("Runtime.evaluate", expression=_source())
    found: list[dict[str, Any]] = browser.value("axe.run(document).then(told => told.violations)")
    return [
        f"{one['id']} ({one['impact']}): {', '.join(str(node['target']) + ' ' + node.get('failureSummary', '')[:200] for node in one['nodes'][:4])}"
        for one in found
        if one["impact"] in _SERIOUS
    ]
