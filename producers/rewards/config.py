"""What the rewards gateway is told: `[feedback]` of the settings file, and the handles of the run that it works for.

In: compose hands both over. Out: frozen records. Invariant: each name can be feedback's. Imports nothing heavy: the
command line reads it for its help.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.section import Count, Port, Seconds, Section

from ..feedback_names import RangeConfig, check_names

__all__ = ["FeedbackConfig", "FeedbackHandles", "SourceConfig", "SourceKind"]


class SourceKind(StrEnum):
    """Whose scores a source has."""

    LANGFUSE = "langfuse"
    """Scores of a Langfuse project."""
    PHOENIX = "phoenix"
    """Annotations of a Phoenix project."""
    MLFLOW = "mlflow"
    """Feedback on traces of an MLflow experiment."""


class SourceConfig(Section, frozen=True, kw_only=True):
    """`[[feedback.sources]]`: where people rate traces already; read again and again, each score counts once
    (docs/feedback.md).

    Example: SourceConfig(kind=SourceKind.PHOENIX, url="http://127.0.0.1:6006").
    """

    kind: SourceKind
    """`langfuse`, `phoenix` or `mlflow`."""
    url: str
    """What stands before its `/api` or `/v1`, such as https://cloud.langfuse.com."""
    name: str = ""
    """In counters, logs and idempotency keys, `name/<its id>`; empty: the kind. Two sources have two names."""
    project: str = ""
    """Of Phoenix the project's name (empty: default), of MLflow the experiment's id (empty: 0); a Langfuse key is of
    one project."""
    api_key_env: str | None = None
    """The variable that holds its key, in the environment of `serve rewards`: a bearer token, or `user:password`, of
    Langfuse `public key:secret key`. None: it asks for none."""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """Its name of a score -> the name in `[feedback.names]`; no others are read. Empty: all that are declared there,
    under the same names."""
    labels: dict[str, float] = msgspec.field(default_factory=dict)
    """What a score that is a text is worth, such as { good = 1.0, bad = 0.0 }; any other text is passed over."""
    every_s: Seconds = 10.0
    """From the end of one reading to the next."""
    look_back_s: Seconds = 3600.0
    """How far back each reading goes: of Langfuse in when a score was given, of the others in when its trace began. As
    long as a conversation lasts, and `wait_s`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            url = urlsplit(self.url)
            is_plain = not (url.username or url.password or url.query or url.fragment) and url.port != 0
        except ValueError:
            is_plain = False
        if not is_plain or url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigurationError(
                "url: expected http(s)://host, with a path at most, such as https://cloud.langfuse.com, got another; a "
                "key belongs into the variable that api_key_env names"
            )
        if not all(map(math.isfinite, self.labels.values())):
            raise ConfigurationError("labels: expected finite numbers, got another")
        if self.kind is SourceKind.LANGFUSE and self.project:
            raise ConfigurationError("project: expected none, got one; a Langfuse key is of one project")

    @property
    def label(self) -> str:
        """What it is called."""
        return self.name or self.kind.value


def _default_names() -> dict[str, RangeConfig]:
    return {"reward": RangeConfig(low=-1.0, high=1.0)}


class FeedbackConfig(Section, frozen=True, kw_only=True):
    """`[feedback]`: takes feedback on what agents did (docs/feedback.md). Runs where the section is."""

    host: str = "127.0.0.1"
    """Loopback unless you say otherwise; whoever asks needs the reward token, wherever they are."""
    port: Port | None = None
    """None: a free port, kept for the life of the run."""
    names: dict[str, RangeConfig] = msgspec.field(default_factory=_default_names)
    """What feedback may be called, and the range of its values; any other name or value is refused."""
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=43_200)] = 60.0
    """With `[select] train`: how long a conversation that has closed waits for feedback before it is trained on; what
    comes later is late. At most 12 hours, a quarter of what topics between stages are kept, or of what your
    cluster keeps `episodes` and `episode_scores`."""
    max_body_bytes: Count = 1024 * 1024
    """Of one request; a larger one gets 413."""
    max_inflight_bytes: Count = 32 * 1024 * 1024
    """Of all requests; beyond it 503, to be sent again."""
    sources: tuple[SourceConfig, ...] = ()
    """Where else people rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = [source.label for source in self.sources]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise ConfigurationError(f"sources: expected a name of its own for each, got {twice[0]!r} twice; set name")
        for source in self.sources:
            if source.look_back_s < self.wait_s:
                raise ConfigurationError(
                    f"sources: look_back_s: expected at least wait_s ({self.wait_s:g}), got {source.look_back_s:g}; "
                    "what people rate last would not be read"
                )
            if unknown := sorted(set(source.names.values()) - self.names.keys()):
                raise ConfigurationError(
                    f"sources: names: expected names that [feedback.names] declares, got {unknown[0]!r}; declare it"
                )
        check_names(self.names)


class FeedbackHandles(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway of a run."""

    port: int
    run_hash: RunHash
    key: bytes
    """The run's secret, by which the reward token is verified."""
    trains: bool = False
    """The run trains on conversations that were rated."""
    source_keys: dict[str, str] = {}
    """The keys of `[feedback.sources]` that ask for one, by their labels."""
    starts: dict[TopicPartition, int] = {}
    """Where the run began on topics that it shares with others."""
    fd: int | None = None
    """A socket that listens there already, held by the supervisor; None: the gateway binds one."""

    def __repr__(self) -> str:
        return f"FeedbackHandles({self.run_hash})"
