"""The variables of user code: of agents, by which they find both gateways and their rollout, and of graders.

In: addresses, tokens, the run's key, and the environment that the runner has. Out: environments. `agent_environment` is
what every agent is given, whoever starts it (`tracegrad env` prints just that). An agent that a runner starts gets a
credential of its own in the place of the gateways' tokens. A host adds the export time-out; a command adds its rollout.
Invariants: what is not named here or in the settings is in none of them: `inherited` is the one door; a credential
stands in a header alone, never in a URL, which clients write into errors, logs and spans.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from tracegrad.schemas.attributes import ATTEMPT_ID, ROLLOUT_ID
from tracegrad.schemas.credentials import Holder, attempt_holder, credential
from tracegrad.schemas.ids import episode_id

from .config import AgentConfig, RewardConfig, RunnerHandles

_KEY = "OPENAI_API_KEY"
_ANTHROPIC = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
_ANY_COUNT = "OTEL_ATTRIBUTE_COUNT_LIMIT"
_COUNTS = ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT")
_MANY = "4096"
"""SDKs keep the last 128 attributes of a span: of a long conversation, which instrumentations write an attribute a
message, what the span is, said first, would be lost. The gateway's bounds on bytes are unchanged."""
_NOTHING: Mapping[str, str] = MappingProxyType({})
_PASSED_ON = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"),
        *("LANG", "LANGUAGE", "TZ"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "no_proxy", "NO_PROXY"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM"),
        *("DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "OTEL_RESOURCE_ATTRIBUTES"),
        *(_ANY_COUNT, *_COUNTS),
    }
)
"""How to find programs, words, times, certificates, and how many threads to start. A list of what is let through, as
nobody knows the names of all secrets; a proxy's address may hold a password."""


def inherited(environ: Mapping[str, str], also: Collection[str] = ()) -> dict[str, str]:
    """What user code gets of an environment: the names above, LC_*, and those that the settings name in `pass_env`."""
    return {
        name: value for name, value in environ.items() if name in _PASSED_ON or name.startswith("LC_") or name in also
    }


def agent_environment(
    handles: RunnerHandles,
    service: str,
    *,
    holder: Holder | None = None,
    path: str = "",
    own: Mapping[str, str] = _NOTHING,
) -> dict[str, str]:
    """What any agent is given; `holder` is one that a runner starts, `path` its rollout's at the gateway, `own` what it
    has besides, whose limits on attributes stand.

    The export time-out is not among it: OTEL_EXPORTER_OTLP_TIMEOUT is seconds to Python's SDK and milliseconds to the
    others', and every SDK's own default is 10 s.
    """
    shown = credential(handles.key, holder) if holder is not None else None
    base, key = handles.llm_url.rstrip("/") + path, shown or handles.llm_token or "tracegrad"
    variables = {
        "OPENAI_BASE_URL": f"{base}/v1",
        _KEY: key,
        # Its clients add /v1 themselves.
        **dict(zip(_ANTHROPIC, (base, key), strict=True)),
        "OTEL_EXPORTER_OTLP_ENDPOINT": handles.otlp_endpoint.rstrip("/"),
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "none",
        # GenAI events tell what some spans do not; nobody waits for those of an attempt, which would mostly be late.
        "OTEL_LOGS_EXPORTER": "otlp" if holder is None else "none",
        "OTEL_PROPAGATORS": "tracecontext,baggage",
        "OTEL_SERVICE_NAME": service,
        # The SDK's defaults lose spans silently when a burst meets a slow gateway (a queue of 2048, sent each 5 s).
        "OTEL_BSP_MAX_QUEUE_SIZE": "32768",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
        **{name: own.get(name, _MANY) for name in _COUNTS if name in own or _ANY_COUNT not in own},
    }
    if shown is not None:
        variables[_HEADERS] = f"x-api-key={shown}"
    elif handles.otlp_token:
        # The variable's value is percent-encoded.
        variables[_HEADERS] = f"authorization=Bearer%20{quote(handles.otlp_token, safe='')}"
    return variables


def host_environment(
    agent: AgentConfig, handles: RunnerHandles, environ: Mapping[str, str], *, holder: Holder
) -> dict[str, str]:
    """The environment of an agent host, which is Python; identity travels by `traceparent`, so none is named in it."""
    given = _given(agent, handles, environ, holder)
    timeout = {"OTEL_EXPORTER_OTLP_TIMEOUT": f"{agent.flush_timeout_s:g}"}
    return {**inherited(environ, agent.pass_env), **given, **timeout, **agent.env, **_shown(given, agent)}


def _given(
    agent: AgentConfig, handles: RunnerHandles, environ: Mapping[str, str], holder: Holder, path: str = ""
) -> dict[str, str]:
    """As `agent_environment`; an agent with an Anthropic account of its own (a judge, a tool) keeps it whole."""
    own = {**inherited(environ, agent.pass_env), **agent.env}
    given = agent_environment(handles, agent.service, holder=holder, path=path, own=own)
    has_own = not {*agent.env, *agent.pass_env}.isdisjoint(_ANTHROPIC)
    return {name: value for name, value in given.items() if not has_own or name not in _ANTHROPIC}


def _shown(given: Mapping[str, str], agent: AgentConfig) -> dict[str, str]:
    """What bears the credential, above the agent's own variables, for nothing goes without, and beside its headers."""
    own = agent.env.get(_HEADERS)
    return {_KEY: given[_KEY], _HEADERS: f"{own},{given[_HEADERS]}" if own else given[_HEADERS]}


def grader_environment(reward: RewardConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a grader, which has no rollout and asks no gateway of ours."""
    return {**inherited(environ, reward.pass_env), **reward.env}


def of_task(env_map: Mapping[str, str], task: Any) -> dict[str, str]:
    """Variables made of a task's input; `[agent] env_map` says how.

    Raises ValueError: the input has nothing there, or what no variable can hold.
    """
    variables = {}
    for name, path in env_map.items():
        value = _found(task, path.split(".")[1:], name) if path == "input" or path.startswith("input.") else path
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if "\0" in text:
            raise ValueError(f"env_map: {name} = {path!r}: expected a text without NUL, got one with it")
        variables[name] = text
    return variables


def _found(value: Any, keys: Sequence[str], name: str) -> Any:
    for key in keys:
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise ValueError(f"env_map: {name}: expected {key!r} in the task's input, found none; mend the path or it")
    return value


def _lightning(handles: RunnerHandles, rollout: str, attempt: str, key: str) -> dict[str, str]:
    """What agents of Agent Lightning 1.0 read. The path says `train` to all: no agent is told its purpose, and the
    gateway goes by what the runner told it."""
    url = handles.llm_url.rstrip("/")
    return {
        "AGL_KEY": key,
        "AGL_OPENAI_BASE_URL": f"{url}/proxy/rollout/{rollout}/attempt/{attempt}/mode/train/openai/v1",
        "AGL_EVENT_URL": f"{url}/api/rollouts/{rollout}/attempt/{attempt}/events",
    }


def command_environment(
    agent: AgentConfig,
    handles: RunnerHandles,
    environ: Mapping[str, str],
    *,
    rollout: str,
    attempt: str,
    span: str,
    task: Any = None,
) -> dict[str, str]:
    """The environment of a command: every variable by which some client learns its rollout.

    Raises ValueError when `env_map` finds nothing in the task's input.
    """
    identity = f"{ROLLOUT_ID}={rollout},{ATTEMPT_ID}={attempt}"
    attributes = agent.env.get("OTEL_RESOURCE_ATTRIBUTES") or environ.get("OTEL_RESOURCE_ATTRIBUTES")
    path = f"/rollout/{rollout}/attempt/{attempt}"
    given = _given(agent, handles, environ, attempt_holder(rollout, attempt), path)
    return {
        **inherited(environ, agent.pass_env),
        **given,
        **agent.env,
        **of_task(agent.env_map, task),
        **_shown(given, agent),
        "OPENAI_BASE_URL": given["OPENAI_BASE_URL"],
        **_lightning(handles, rollout, attempt, given[_KEY]),
        "OTEL_RESOURCE_ATTRIBUTES": f"{attributes},{identity}" if attributes else identity,
        "TRACEPARENT": f"00-{episode_id(rollout, attempt)}-{span}-01",
        "BAGGAGE": identity,
    }
