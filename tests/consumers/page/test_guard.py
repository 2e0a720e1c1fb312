"""Who may see the page: the token, the page's own name, its own links; and what a browser may do with it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.consumers.page.boards import PORT, TOKEN, browser, new_board
from tests.memory_log import MemoryLog
from tracegrad.consumers.page.board import Board
from tracegrad.consumers.page.guard import CSP
from tracegrad.consumers.page.render import STATIC

VIEWED = ("/", "/system", "/episode/ab", "/no-such-view", "/json?of=/", "/static/page.js", "/static/no")


@pytest.fixture
def board(tmp_path: Path, memory_log: MemoryLog) -> Board:
    """Of a run without a record."""
    return new_board(tmp_path, memory_log)


async def test_the_url_with_the_token_leads_to_the_page(board: Board) -> None:
    """The token leaves the address bar for a cookie that no script reads and no other site's request carries."""
    async with browser(board, is_let_in=False) as client:
        answer = await client.get(f"/episode/ab?n=50&token={TOKEN}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/episode/ab?n=50")
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
        assert str(PORT) in cookie.split("=")[0]
        assert (await client.get("/")).status_code == 200


async def test_a_url_never_leads_elsewhere(board: Board) -> None:
    """A path that begins with two strokes would be another host's."""
    async with browser(board, is_let_in=False) as client:
        answer = await client.get(f"http://127.0.0.1:{PORT}//evil.example/x?token={TOKEN}")
        assert answer.headers["location"] == "/evil.example/x"


@pytest.mark.parametrize("path", VIEWED)
@pytest.mark.parametrize(
    "shown", ["", "token=", "token=wrong", f"token={TOKEN[:-1]}", f"token={TOKEN}x", "token=%C3%A9"]
)
async def test_without_the_token_nothing_is_shown(board: Board, path: str, shown: str) -> None:
    """Not even whether the path is one; the answer says what to do."""
    async with browser(board, is_let_in=False) as client:
        answer = await client.get(f"{path}{'&' if '?' in path else '?'}{shown}")
        assert answer.status_code == 403
        assert "tracegrad page RUN" in answer.text and TOKEN not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"host": f"evil.example:{PORT}"},
        {"host": "127.0.0.1"},
        {"host": f"127.0.0.1:{PORT + 1}"},
        {"host": ""},
        {"host": f"127.0.0.1.evil.example:{PORT}"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"http://localhost:{PORT}"},
        {"origin": f"http://127.0.0.1:{PORT + 1}"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=lambda headers: "=".join(*headers.items()),
)
@pytest.mark.parametrize("path", ["/", f"/?token={TOKEN}", "/json?of=/"])
async def test_other_names_and_other_sites_are_refused(board: Board, path: str, headers: dict[str, str]) -> None:
    """Even with the cookie, or the token."""
    async with browser(board) as client:
        assert (await client.get(path, headers=headers)).status_code == 403


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
async def test_loopbacks_own_names_are_the_pages(board: Board, name: str) -> None:
    """With the page's port, and the Origin that goes with them."""
    async with browser(board) as client:
        host = f"{name}:{PORT}"
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert (await client.get("/", headers=headers)).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_nothing_can_be_written(board: Board, method: str) -> None:
    """The page only shows."""
    async with browser(board) as client:
        assert (await client.request(method, "/")).status_code == 405


@pytest.mark.parametrize("path", VIEWED)
@pytest.mark.parametrize("is_let_in", [True, False])
async def test_every_answer_bears_the_headers(board: Board, path: str, is_let_in: bool) -> None:
    """Refusals, errors and files too."""
    async with browser(board, is_let_in=is_let_in) as client:
        headers = (await client.get(path)).headers
        assert headers["content-security-policy"] == CSP
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store" or (path == "/static/page.js" and is_let_in)


def test_the_policy_allows_no_text_of_a_page_to_run() -> None:
    """Scripts and styles are the page's own files alone."""
    rules = dict(rule.split(" ", 1) for rule in CSP.split("; "))
    assert rules["default-src"] == "'none'" and rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in CSP


def test_vendored_files_are_what_they_were_when_they_came() -> None:
    """Each has its checksum and its licence beside it."""
    lines = (line.split() for line in (STATIC / "SHA256SUMS").read_text().splitlines())
    sums = {name: expected for expected, name in lines}
    assert set(sums) == {path.name for path in STATIC.iterdir() if ".min." in path.name}
    for name, expected in sums.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == expected
        assert (STATIC / f"LICENSE.{name.split('.')[0].removesuffix('-ext')}").is_file()


async def test_the_page_is_small_on_the_wire(board: Board) -> None:
    """All that a browser loads for a view, compressed."""
    num = 0
    async with browser(board) as client:
        for path in ("/", *(f"/static/{path.name}" for path in STATIC.iterdir() if path.suffix in (".js", ".css"))):
            async with client.stream("GET", path, headers={"accept-encoding": "gzip"}) as answer:
                num += len(b"".join([part async for part in answer.aiter_raw()]))
    assert num < 150_000


def test_no_template_hands_on_what_is_not_escaped() -> None:
    """But page.html, the part that another template made; and none holds a script, a style or a handler of its own."""
    for path in (STATIC.parent / "templates").rglob("*.html"):
        text = path.read_text()
        assert text.count("safe") == (1 if path.name == "page.html" else 0), path.name
        assert "autoescape" not in text and "<style" not in text, path.name
        assert text.count("<script") == text.count("<script src="), path.name
        assert not re.search(r"<[^>]*\s(style|on\w+|hx-on\S*)=", text), path.name
