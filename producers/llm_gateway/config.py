"""What the gateway is told at start: two sections of the settings, and what belongs to one run."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.section import Count, File, Model, Seconds, Section

from ..exposure import GatewayHandles, ListenConfig

GRACE_S = 10
"""When the gateway is stopped, how long answers that are under way may take; calls that wait for an engine that is
away take all of it."""


RUN_MODEL = "run:"
"""How `[policy] model` names another run."""


class PolicyConfig(Section, frozen=True, kw_only=True):
    """`[policy]`: the model that learns."""

    name: str = "policy"
    """What the agent asks for as `model`, and the key of its transitions and weights."""
    aliases: tuple[str, ...] = ()
    """Other names by which agents ask for it, such as "gpt-4o-mini", exactly as they are sent; any other model is
    answered by 404."""
    model: Model | None = None
    """A Hugging Face folder (config, tokenizer, safetensors), `run:NAME` (the best version of another run, else its
    newest; looked up once, when the run is made), or a hub name where a hub is reachable. None: there is no
    policy, and `tracegrad up --only capture` passes calls on to `[[upstream]]` alone."""
    chat_template: File | None = None
    """A Jinja chat template of your own, instead of the model's, for a family whose turns do not merge
    (docs/templates.md): the engine renders by it, and every version's folder holds it. An engine of [engine] url is to
    be started with it too (`--chat-template`)."""
    temperature: Annotated[float, Meta(ge=0.01, le=2)] = 1.0
    """Sampling temperature of training rollouts; a greedy policy learns nothing. vLLM takes less than 0.01 for 0.01 and
    refuses more than 2."""
    max_tokens: Count | None = None
    """Bound on one answer in training; None: what the agent asks, up to the context window."""
    validation_temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """Of held-out rollouts; 0 is greedy."""
    tools: bool = True
    """The agent uses tools, so a chat template that ignores them is refused at start."""

    @property
    def names(self) -> tuple[str, ...]:
        """By which it is asked for; none without a model."""
        return () if self.model is None else (self.name, *self.aliases)

    def needed_model(self) -> str:
        """The model of what cannot do without. Raises ConfigurationError."""
        if self.model is None:
            raise ConfigurationError(
                "[policy] model is missing; add it, or pass --model DIR. Without one, `tracegrad up --only capture` "
                "passes calls on to other models ([[upstream]], docs/upstreams.md)"
            )
        return self.model


class UpstreamConfig(Section, frozen=True, kw_only=True):
    """`[[upstream]]`: other models, whose requests are passed on unchanged, recorded as context and not trained on."""

    models: tuple[str, ...]
    """Their names, exact or with `*` for any text, such as "gpt-*". The first upstream that has a name takes it; the
    policy's names stay the policy's."""
    url: str
    """What stands before `/chat/completions`, as clients have it for a base URL; a host alone means its `/v1`."""
    name: str = ""
    """In records and counters; empty: the URL's host."""
    api_key_env: str | None = None
    """The variable that holds its key, in the environment of `serve llm`; None: it asks for none. What key the agent
    sends never goes there."""
    timeout_s: Seconds = 600.0
    """For one answer, streamed ones to their end."""
    max_inflight: Count = 64
    """Requests of attempts at once, and half as many others; beyond it 503 with Retry-After. Calls of the policy do not
    count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.models or not all(self.models):
            raise ConfigurationError('models: expected names of models, such as ["gpt-*"], got none or an empty one')
        try:
            url = urlsplit(self.url)
            is_plain = not (url.username or url.password or url.query or url.fragment) and url.port != 0
        except ValueError:
            is_plain = False
        if not is_plain or url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigurationError(
                "url: expected http(s)://host, with a path at most, such as https://api.openai.com/v1, got another; a "
                "key belongs into the variable that api_key_env names"
            )


class LlmConfig(ListenConfig, frozen=True, kw_only=True):
    """`[llm]`: the gateway that agents ask for answers."""

    allow_strict: bool = False
    """Keep `strict` on tools: the engine then samples under a grammar and the call leaves the loss."""
    allow_forced: bool = False
    """Keep `tool_choice` `required` or a named tool where a call may train or is held out, as smolagents sends it with
    each; likewise. Else the policy chooses by itself, as with `auto`."""
    max_body_bytes: Count = 8 * 1024 * 1024
    """Of one request; beyond it 413."""
    max_inflight: Count = 512
    """Calls of attempts at once, and half as many others; beyond it 503 with Retry-After."""
    max_inflight_bytes: Count = 512 * 1024 * 1024
    """Of the bodies of attempts' requests, and half as many of others; beyond it the client that is longest silent
    within its body gets 408, and if all are here, 503."""
    max_attempts: Count = 20_000
    """Attempts remembered, running and ended; the least recently used one goes first."""
    max_history_ids: Count = 64_000_000
    """Token ids (4 bytes each) of all remembered answers and their prompts; beyond it captured traces are forgotten,
    the oldest first, then new answers are not remembered, so that the next call starts a new segment."""
    idle_s: Seconds = 3600.0
    """Attempts and captured traces without a call for so long are forgotten."""
    engine_wait_s: Seconds = 180.0
    """How long a call waits for an engine that loads, restarts or bears a wrong label."""
    engine_health_s: Seconds = 10.0
    """Of several engines, how long one may leave the question after its health unanswered, twice, before its calls go
    to another."""
    generate_timeout_s: Seconds = 600.0
    """How long one answer may be sampled."""
    lineage_lag_s: Seconds = 1.0
    """How far the reading of `weights` may lie behind an engine that already serves a version."""
    end_wait_s: Seconds = 60.0
    """How long an attempt's end waits for calls in flight before it cancels them."""
    keep_alive_s: Seconds = 5.0
    """Silence after which a streamed answer sends a comment."""


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway waits for as no setting says; tests wait for less."""

    open_after_s: float = 5.0
    """A captured call that lasts longer is told as open."""
    retry_s: float = 1.0
    """Until what Kafka did not take of calls' outcomes is written again."""
    last_words_s: float = 5.0
    """How long a gateway that stops waits for Kafka to take the outcomes of its last calls."""
    append_timeout_s: float = 60.0
    """For one record to be acknowledged."""
    weights_poll_s: float = 0.05
    label_poll_s: float = 0.1
    """Of an engine that bears a label which is not the policy's."""
    proof_retry_s: float = 2.0
    """Until an engine that is away is asked again whether it renders as the gateway does."""
    upstream_idle_s: float = 4.0
    """Servers end connections that were idle for 5 s or more; a request that is sent just then is lost, and may not be
    sent again, for it might be paid for twice."""


TIMINGS = Timings()
"""A gateway's."""


class EngineRef(msgspec.Struct, frozen=True, kw_only=True):
    """One inference engine."""

    id: str
    """As on `weight_acks`."""
    url: str
    """Without a path, such as http://127.0.0.1:8000."""
    token: str | None = None
    """What it asks for, as a Bearer key; None: nothing."""


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream, its key read."""

    name: str
    models: tuple[str, ...]
    """As in UpstreamConfig."""
    base_url: str
    """What stands before `/chat/completions`, without a slash at its end."""
    key: str | None
    timeout_s: float
    max_inflight: int

    def __repr__(self) -> str:
        return f"Upstream({self.name})"


class LlmHandles(GatewayHandles, frozen=True, kw_only=True):
    """The run that it works for."""

    engines: tuple[EngineRef, ...]
    """All serve the policy; empty where there is none."""
    renders_locally: bool
    """Render and parse in the gateway once that is proved equal to the engine; False: never."""
    upstreams: tuple[Upstream, ...] = ()
    """Who answers for other models, in the order of the settings."""
    weight_root: str = ""
    """Where the run's versions lie."""
    trains_captured: bool = False
    """The run trains on captured calls: they are sampled as an attempt's, by versions that are known."""
    samples_as_asked: bool = False
    """Of such a run: by versions that are known, yet as the agent asks."""
    pause_s: float = 2.5
    """Of a captured conversation, after which its episode may have closed: a quarter of the least silence that closes
    one (`[streams] idle_s`)."""
