"""Who may see the page, and what a browser may do with it: around every route, before any of them.

In: a request. Out: the route's answer with the page's headers, or 403, 405. The token comes once, in the URL that the
run prints; then a cookie holds it, which no script reads and no other site's request carries. Invariants: every
answer bears the headers; nothing is served to who cannot show the token, under another name than loopback's
(a foreign name that resolves to 127.0.0.1 is how other sites read local servers), or for another site's page.
Failure: none; refusals say what to do.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_OWN_SITE = ("same-origin", "none")
"""`none`: the user's own doing, such as a URL that is typed."""


class Guard:
    """ASGI middleware.

    Args:
        app: what is guarded.
        token: what the URL shows.
        port: at which the page is served; cookies know no ports, so it is part of the cookie's name.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app, self._token, self._cookie = app, token, f"tracegrad_page_{port}"
        self._hosts = frozenset(f"{name}:{port}" for name in _NAMES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or hands on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        request = Request(scope)
        answer = self._refusal(request.headers, request.method) or self._admission(request)
        await (answer or self._app)(scope, receive, with_headers)

    def _refusal(self, headers: Headers, method: str) -> Response | None:
        host = headers.get("host", "")
        if host not in self._hosts:
            names = " or ".join(sorted(self._hosts))
            return PlainTextResponse(f"expected the page's own name, {names}, got another; open that one\n", 403)
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return PlainTextResponse("expected a request of the page itself, got another site's\n", 403)
        if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
            words = "expected the page's own link, got another site's; paste the URL into the address bar\n"
            return PlainTextResponse(words, 403)
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("expected GET\n", 405, headers={"allow": "GET, HEAD"})
        return None

    def _admission(self, request: Request) -> Response | None:
        """None: the token was shown. Of a URL with the token: the same one without it, and the cookie."""
        shown = request.query_params.get("token")
        if shown is not None and self._is_right(shown):
            left = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
            answer = RedirectResponse("/" + request.url.path.lstrip("/") + (f"?{urlencode(left)}" if left else ""), 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return answer
        if shown is None and self._is_right(request.cookies.get(self._cookie, "")):
            return None
        return PlainTextResponse(
            "expected the page's token, got none or a wrong one; open the URL that the run printed, or ask for it: "
            "tracegrad page RUN\n",
            403,
        )

    def _is_right(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())
