"""The page's section of the settings. In: values. Out: `PageConfig`. Failure: ConfigurationError."""

from __future__ import annotations

from tracegrad.schemas.section import Port, Section


class PageConfig(Section, frozen=True, kw_only=True):
    """`[page]`: the page that shows the run, at 127.0.0.1 and behind a token."""

    enabled: bool = True
    """Whether `up`, `train` and `demo` serve it."""
    port: Port | None = None
    """None: a free port, kept for the life of the run."""
