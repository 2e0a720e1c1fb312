"""Pictures of a run's page, for README and docs: `python -m tests.compose.page.screenshots RUN docs/images`.

In: a run that has ended, by name or folder. Out: a PNG a view, at 1,280 pixels in light, of Run at 390 in dark too. The
group is the newest that trained in which some attempts won and some did not, the episode its best. Failure: an
exception names the view.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page, sync_playwright

from tests.e2e.live_run import TRACEGRAD

_CHROMIUM = "/usr/bin/chromium"
_WIDE, _NARROW = 1280, 390
_MAX_HEIGHT = 1500
_READ_MS = 60_000
_SETTLED_MS = 1_500
"""Charts are drawn behind the page."""

_MIXED = re.compile(r"\b1, 0\.\d+, 0\b")
"""Rewards of a group: best, mean, worst."""


@contextlib.contextmanager
def served(run: str) -> Iterator[str]:
    """The URL of the run's page, token and all."""
    with subprocess.Popen([TRACEGRAD, "page", run], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = next((line for line in process.stdout if "token=" in line), None)
            assert url is not None, "expected the page's URL, got none"
            yield url[url.index("http") :].split()[0]
        finally:
            process.send_signal(signal.SIGINT)


def shoot(page: Page, url: str, file: Path) -> None:
    """One view, once its charts are there."""
    page.goto(url)
    # A view whose broker does not answer yet asks again until it does.
    page.wait_for_selector("main [hx-get]", state="detached", timeout=_READ_MS)
    page.wait_for_timeout(_SETTLED_MS)
    size = page.viewport_size
    assert size is not None
    height = min(int(page.evaluate("document.documentElement.scrollHeight")), _MAX_HEIGHT)
    page.screenshot(path=file, full_page=True, clip={"x": 0, "y": 0, "width": size["width"], "height": height})
    print(file)


def main() -> None:
    """Writes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with served(given.run) as url, sync_playwright() as playwright:
        parts = urlsplit(url)
        base = f"{parts.scheme}://{parts.netloc}"
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDE, "height": 900}, color_scheme="light")
        page.goto(url)
        page.goto(f"{base}/learned")
        page.wait_for_selector("main .pair .talk", timeout=_READ_MS)
        for name in ("", "learned", "groups", "system"):
            shoot(page, f"{base}/{name}", given.out / f"{name or 'run'}.png")
        page.goto(f"{base}/groups?where=step>0 reward=0")
        rows = page.query_selector_all("main tbody tr")
        row = next((one for one in rows if _MIXED.search(one.inner_text())), page)
        for name, within in (("group", row), ("episode", page)):
            found = within.query_selector(f"a[href^='/{name}/']")
            assert found is not None, f"expected a link to a {name}, got none"
            shoot(page, base + str(found.get_attribute("href")), given.out / f"{name}.png")
        narrow = browser.new_page(viewport={"width": _NARROW, "height": 800}, color_scheme="dark")
        narrow.goto(url)
        shoot(narrow, f"{base}/", given.out / "run-narrow.png")
        browser.close()


if __name__ == "__main__":
    main()
