"""A hook of `opentelemetry-instrument`: the process continues the trace that its environment names.

In: TRACEPARENT and BAGGAGE, which no SDK of Python reads by itself. Out: the context that every span of the main thread
begins in. So an agent that another process starts is part of that one's trace. Failure: none; text that is no trace
parent is left alone, and without OpenTelemetry there is nothing to attach.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_CARRIED = ("traceparent", "tracestate", "baggage")


def attach(environ: Mapping[str, str] = os.environ) -> None:
    """Attaches what the environment carries; called once, before the agent's own code."""
    carried = {name: environ[name.upper()] for name in _CARRIED if name.upper() in environ}
    if not carried:
        return
    try:
        from opentelemetry import context
        from opentelemetry.baggage.propagation import W3CBaggagePropagator
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return
    found = TraceContextTextMapPropagator().extract(carried)
    context.attach(W3CBaggagePropagator().extract(carried, found))
