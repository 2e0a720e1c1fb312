"""A request of an agent whose body is here, before anybody has read what it asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from .api.events import Api
from .identity import Caller
from .session import AttemptSession


@dataclass(frozen=True)
class AgentRequest:
    """One request."""

    http: Request
    route: str
    api: Api
    """In whose words it is answered."""
    caller: Caller
    session: AttemptSession | None
    """Of its attempt; None: it is of none."""
    is_recorded: bool
    """Whether the agent lets it leave a record."""
    data: bytes
    """The body as it was sent."""
    body: dict[str, Any]
    """The object that it says."""
