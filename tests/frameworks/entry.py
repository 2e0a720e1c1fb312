"""What a row of the catalogue is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

OI = "openinference.instrumentation"
OTEL = "opentelemetry.instrumentation"
_HTTPX = f"{OTEL}.httpx:HTTPXClientInstrumentor"
_HTTPX2 = f"{OTEL}.httpx:HTTPX2ClientInstrumentor"
_BOTH = (_HTTPX, _HTTPX2)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One recording to be made, in both ways."""

    name: str
    """`<framework>-<instrumentation>[-stream]`."""
    title: str
    """The framework in words."""
    agent: str
    """Its program under `agents/`."""
    environment: str
    """Its list under `requirements/`."""
    instrumentors: tuple[str, ...] = ()
    """module:class, loaded in this order, before those of the HTTP clients."""
    has_http: bool = True
    """Whether the HTTP clients' instrumentors are loaded."""
    has_agents: bool = True
    """False: the program knows no agents, so no call has one."""
    delegations: Mapping[str, Mapping[str, Any]] = {}
    """The tools by which the planner reaches the expert, with what the model gives them."""
    asks_in_text: bool = False
    """The model names tools in its text, so no execution answers a tool call."""
    is_node: bool = False
    streams: bool = False
    variables: Mapping[str, str] = {}
    note: str = ""
    """What is not seen in it, and why."""

    @property
    def instrumentation(self) -> str:
        """The part of the name behind the framework's."""
        return self.name.partition("-")[2].removesuffix("-stream")

    @property
    def all_instrumentors(self) -> tuple[str, ...]:
        """In the order in which they are loaded."""
        return (*self.instrumentors, *(_BOTH if self.has_http else ()))
