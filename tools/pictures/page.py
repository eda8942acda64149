"""The photographs: `hermes web` in a browser, a search over what three programs said, light and dark."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.browser import Browser
from tests.support.page import Page

WIDTH, HEIGHT = 1120, 600
QUERY, FOUND = "memory", "without more memory"


def photographed(folder: Path, variables: dict[str, str]) -> None:
    """Write web-light.png and web-dark.png."""
    with Page(Path(variables["HERMES_HOME"]), env=variables) as page, Browser() as browser:
        browser.open(page.link, WIDTH)
        for scheme in ("light", "dark", "light"):  # again: the first search of a process is slower
            browser.open(f"{page.address}/?q={QUERY}", WIDTH, dark=scheme == "dark")
            browser.call(
                "Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1.5, mobile=False
            )
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            browser.wait(f"document.body.innerText.includes({json.dumps(FOUND)})")
            browser.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            browser.picture(folder / f"web-{scheme}.png")
