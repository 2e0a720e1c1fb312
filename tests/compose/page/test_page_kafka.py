"""The page over a real broker: it follows the run, survives the broker, and browsers show it."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.compose.page.serving import Served, is_there, served
from tests.serving import until
from tracegrad.compose.history.run_broker import is_opened, open_broker
from tracegrad.compose.page.page_file import PAGE_FILE, read_page_file

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for the tests of this file."""
    with served(tmp_path_factory.mktemp("runs")) as found:
        yield found


@pytest.fixture
def chromium() -> Iterator[Browser]:
    """The system's own; no browser is downloaded."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium; apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def steps_shown(client: httpx.Client) -> list[float]:
    """By the numbers of the charts."""
    found: list[float] = client.get("/json?of=/").json()["steps"]
    return found


def test_the_page_follows_a_run_through_the_death_of_its_broker(page: Served) -> None:
    """It answers meanwhile with what it has, and goes on by itself."""
    with page.client() as client:
        page.train(1, 2)
        until(lambda: steps_shown(client) == [1, 2], what="two steps")
        page.kafka.kill()
        assert client.get("/").status_code == client.get("/system").status_code == 200
        assert steps_shown(client) == [1, 2]
        page.kafka.start()
        page.train(3)
        until(lambda: steps_shown(client) == [1, 2, 3], what="the third step")


def test_clients_that_never_read_harm_nobody(page: Served) -> None:
    """Whoever reads is served beside them, and when they have left."""
    with page.client() as client:
        answers = [client.stream("GET", "/system") for _ in range(64)]
        assert [answer.__enter__().status_code for answer in answers] == [200] * 64
        assert client.get("/").status_code == 200
        for answer in answers:
            answer.__exit__(None, None, None)
        assert client.get("/").status_code == 200


def test_seven_tabs_follow_the_run_in_chromium(page: Served, chromium: Browser) -> None:
    """More than a browser has connections for, all seen at once; its policy is broken by none, and nothing fails."""
    context = chromium.new_context()
    context.add_init_script(
        "addEventListener('securitypolicyviolation', (event) => {"
        " window.broken = (window.broken || []).concat(event.violatedDirective + ' ' + event.blockedURI); });"
    )
    said: list[str] = []
    tabs = [context.new_page() for _ in range(7)]
    for tab in tabs:
        tab.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.goto(page.link)
    assert all("token" not in tab.url for tab in tabs)
    page.train(7)
    for tab in tabs:
        # Not by a function of the browser's, which would be evaluated: the page's policy refuses it.
        number = tab.locator(".facts dd").first
        until(lambda number=number: number.inner_text().startswith("7"), what="the seventh step")  # type: ignore[misc]
        tab.wait_for_selector(".chart canvas", timeout=60_000)
    tab = tabs[0]
    assert tab.locator(".chart .u-legend .u-value").first.inner_text() == "7"
    tab.get_by_text("Numbers").first.click()
    assert tab.locator(".chart .rows tbody tr").first.locator("td").first.text_content() == "7"
    tab.get_by_role("link", name="System").click()
    tab.wait_for_selector(".flow")
    assert [tab.evaluate("window.broken || []") for tab in tabs] == [[]] * 7
    assert said == []
    context.close()


def test_a_tab_that_is_hidden_asks_for_nothing(page: Served, chromium: Browser) -> None:
    """And at once when it is seen again. Chromium without a screen hides no tab, so that the test says to the script
    that it did."""
    tab = chromium.new_page()
    asked = list[str]()
    tab.on("request", lambda request: asked.append(request.url) if "hx-request" in request.headers else None)

    def show(is_hidden: str) -> None:
        tab.evaluate(
            f"Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {is_hidden}}});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )

    def has_more_than(num: int) -> bool:
        tab.wait_for_timeout(50)  # else the browser's events are not heard
        return len(asked) > num

    tab.goto(page.link)
    until(lambda: has_more_than(1), what="two questions")
    show("true")
    num = len(asked)
    tab.wait_for_timeout(5_000)
    assert len(asked) <= num + 1, "one may have been under way"
    num = len(asked)
    show("false")
    until(lambda: has_more_than(num), what="another question")
    tab.close()


def tracegrad(*arguments: str) -> list[str]:
    """A command of ours."""
    return [sys.executable, "-m", "tracegrad.compose.cli", *arguments]


@contextmanager
def opened(folder: Path) -> Iterator[httpx.Client]:
    """`tracegrad page` of the run, until the end of the block; the first answer is there."""
    page = subprocess.Popen(tracegrad("page", str(folder)), stdout=subprocess.PIPE, text=True)
    assert page.stdout is not None
    try:
        link = page.stdout.readline().strip()
        url = link.partition("/?")[0]
        until(lambda: is_there(url), what="the page answers")
        with httpx.Client(base_url=url, follow_redirects=True, timeout=20) as client:
            assert client.get(link).status_code == 200
            yield client
    finally:
        page.send_signal(signal.SIGINT)
        assert page.wait(60) == 0
        page.stdout.close()


def test_a_run_that_has_ended_is_shown_beside_its_other_readers(tmp_path: Path) -> None:
    """The next page starts no broker before a view asks for records; then it has it alone."""
    with served(tmp_path) as live:
        live.train(1, 2)
        run_dir = live.wiring.run_dir
    assert stat.S_IMODE((run_dir.path / PAGE_FILE).stat().st_mode) == 0o600
    file = read_page_file(run_dir)
    assert file is not None and len(file.records) == 2
    with opened(run_dir.path) as client, opened(run_dir.path) as second:
        for one in (client, second):
            assert steps_shown(one) == [1, 2]
            assert one.get("/system").status_code == 200
            assert "What it learned" in one.get("/").text
        assert not is_opened(run_dir)
        episodes = tracegrad("episodes", "--run", str(run_dir.path))
        beside = subprocess.run(episodes, capture_output=True, text=True, timeout=100, check=False)
        assert beside.returncode == 0, beside.stderr
        assert not run_dir.is_locked()
        unknown = f"/episode/{'ab' * 16}"
        assert client.get(unknown).status_code == 503
        until(lambda: client.get(unknown).status_code == 404, what="the log")
        assert second.get(unknown).status_code == 503
        until(lambda: "already is the" in second.get("/").text, what="who has the broker")
        with opened(run_dir.path) as third:
            assert steps_shown(third) == [1, 2]
            assert "The run has ended after step 2" in third.get("/").text
    assert not run_dir.is_locked()
    assert read_page_file(run_dir) == file


@pytest.mark.parametrize("what", ["gone", "damaged", "older"])
def test_a_page_without_what_another_left_reads_the_topics_and_leaves_it(tmp_path: Path, what: str) -> None:
    """Then it needs the broker no more."""
    with served(tmp_path) as live:
        live.train(1, 2)
        run_dir = live.wiring.run_dir
    path = run_dir.path / PAGE_FILE
    if what == "gone":
        path.unlink()
    elif what == "damaged":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        run_dir.endpoints_file.touch()
    assert read_page_file(run_dir) is None
    with opened(run_dir.path) as client:
        until(lambda: steps_shown(client) == [1, 2], what="two steps")
        until(lambda: read_page_file(run_dir) is not None, what="the next page needs no broker")
        until(lambda: not run_dir.is_locked() and not is_opened(run_dir), what="the broker is free")


def test_a_page_that_has_nothing_and_gets_no_broker_says_who_has_it(tmp_path: Path) -> None:
    """It ends."""
    with served(tmp_path) as live:
        run_dir = live.wiring.run_dir
    (run_dir.path / PAGE_FILE).unlink()
    with open_broker(run_dir):
        page = tracegrad("page", str(run_dir.path))
        refused = subprocess.run(page, capture_output=True, text=True, timeout=100, check=False)
    assert refused.returncode == 78 and f"process {os.getpid()} already is the reader" in refused.stderr
