"""An episode as one file that needs nothing else: no network, no script, the page's own look.

In: a view of an episode. Out: HTML. Invariant: the file's own policy (CSP) lets it load and run nothing; its one
style sheet is named by hash. Failure: none.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape

from ..render import STATIC, render
from .episode import COLORS, EpisodeView

_SHEETS = ("page.css", "episodes.css")


def file_of(seen: EpisodeView, *, run: str) -> str:
    """The whole file."""
    style = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in _SHEETS)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    part = render("episodes/episode.html", {"seen": seen, "colors": COLORS, "is_file": True})
    title = escape(f"{seen.episode.episode_id} - {run} - tracegrad")
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="content-security-policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
    )
    body = (
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n{part}\n</main>\n</body>\n</html>\n"
    )
    return head + body
