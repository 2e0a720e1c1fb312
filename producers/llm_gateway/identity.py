"""Who calls: collects the identity claims of a request and judges them. Pure; knows no registry.

In: the rollout path, API key, headers, baggage and traceparent of one request, and whose credential it bears; of who
names no rollout also the conversation. Out: a Caller, or ProofError when a claim to a rollout of this run is not proved
by the credential, or IdentityError when claims are malformed or disagree; the gateway quarantines such a request, it
never guesses.
A traceparent is a claim only when its trace id begins with this run's hash. Which attempts an agent host works on is
known to their sessions; here its credential proves that it is a host of this run. A rollout of another run is no
runner's here, so that its claims need no proof. Of a conversation's id only a hash goes further: it may be a person's.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import Request

from tracegrad.schemas.attributes import (
    ATTEMPT_ID,
    CONVERSATION_HEADER,
    CONVERSATION_KEYS,
    RECORD_HEADER,
    ROLLOUT_ID,
)
from tracegrad.schemas.credentials import ATTEMPT_PREFIX, Holder, claimed_attempt, may_claim
from tracegrad.schemas.errors import IdentityError, ProofError, RequestError
from tracegrad.schemas.ids import (
    AttemptId,
    RolloutId,
    RunHash,
    TraceId,
    attempt_of,
    conversation_key,
    is_lightning,
    key_of,
    parse_attempt_id,
    parse_rollout_id,
    run_hash_of,
)
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import Claims

from ..http_request import api_keys_of

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The judged identity of one request."""

    holder: Holder | None
    """Who shows a credential of this run."""
    rollout_id: RolloutId | None
    attempt_id: AttemptId | None
    """None with a rollout: the claims named no attempt."""
    trace_id: TraceId | None
    parent_span_id: str | None
    claims: Claims
    conversation_key: str | None = None
    """Of a caller without a rollout: the conversation that it names or continues."""
    scope: bytes = b""
    """Which client, as `scope_of` tells; of a captured call."""

    @property
    def key(self) -> str:
        """Of its episode; empty for one that names nothing."""
        return key_of(self.rollout_id, self.conversation_key, self.trace_id)

    @property
    def record_key(self) -> bytes:
        """Of its records on `llm_calls`."""
        return episode_key(self.rollout_id, self.trace_id, conversation=self.conversation_key)

    @property
    def names(self) -> dict[str, Any]:
        """What each of its records says of it."""
        return {
            "rollout_id": self.rollout_id,
            "attempt_id": self.attempt_id,
            "trace_id": self.trace_id,
            "conversation_key": self.conversation_key,
        }

    def in_trace_of_its_own(self) -> Caller:
        """The caller as one whose request continues no other."""
        return msgspec.structs.replace(self, trace_id=TraceId(secrets.token_hex(16)))


def claims_of(request: Request) -> Claims:
    """The claims as received, each as `<rollout>.<attempt>` (traceparent as it is)."""
    names, headers = request.path_params, request.headers
    baggage = _entries(headers.get("baggage", ""))
    return Claims(
        path=_join(names.get("rollout"), names.get("attempt")),
        api_key=next(filter(None, map(claimed_attempt, api_keys_of(headers))), None),
        header=_join(headers.get("x-rollout-id"), headers.get("x-attempt-id")),
        baggage=_join(baggage.get(ROLLOUT_ID), baggage.get(ATTEMPT_ID)),
        traceparent=headers.get("traceparent"),
    )


def _join(rollout: str | None, attempt: str | None) -> str | None:
    if rollout is None:
        return None if attempt is None else f".{attempt}"
    return rollout if attempt is None else f"{rollout}.{attempt}"


def _entries(baggage: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    for member in baggage.split(","):
        name, found, value = member.partition("=")
        if found:
            entries[name.strip()] = unquote(value.split(";")[0].strip())
    return entries


def conversation_of(headers: Mapping[str, str]) -> str | None:
    """The key of the conversation that a request names, in its header or else in baggage."""
    entries = _entries(headers.get("baggage", ""))
    named = (headers.get(CONVERSATION_HEADER, "").strip(), *(entries.get(key) for key in CONVERSATION_KEYS))
    conversation = next(filter(None, named), None)
    return conversation_key(conversation) if conversation else None


def scope_of(request: Request) -> bytes:
    """Which client asks, as far as a request tells: a digest of its credential and address."""
    host = request.client.host if request.client else ""
    return hashlib.sha256("\0".join((host, *api_keys_of(request.headers))).encode()).digest()


def judge(claims: Claims, holder: Holder | None, run: RunHash, conversation: str | None = None) -> Caller:
    """The one identity that all claims name.

    Args:
        claims: of the request.
        holder: whose credential of this run it bears.
        run: whose rollouts need proof.
        conversation: the key of the one that is named, which counts where no rollout is. A rollout of Agent Lightning
            (`ro-`) is none of ours, and names a conversation.
    Raises:
        ProofError: reason `no_credential` or `other_attempt`.
        IdentityError: reason `malformed_identity` or `identity_disagreement`.
    """
    trace_id, span_id = _parse_traceparent(claims.traceparent)
    named, foreign = _named(claims)
    if trace_id is not None and (own := attempt_of(trace_id, {run})):
        named.append(own)
    for rollout, attempt in named:
        if run_hash_of(rollout) == run and not may_claim(holder, rollout, attempt):
            raise _unproved(rollout, holder)
    rollouts = {rollout for rollout, _ in named}
    attempts = {attempt for _, attempt in named if attempt is not None}
    if len(rollouts) > 1 or len(attempts) > 1 or len(foreign) > 1:
        raise IdentityError(
            f"expected one rollout and attempt, got {max(len(rollouts), len(foreign))} and {len(attempts)} from the "
            "request's path, API key, headers, baggage and traceparent; send one identity",
            reason=Reason.IDENTITY_DISAGREEMENT,
        )
    if foreign:
        conversation = conversation_key(foreign.pop())
    if conversation is not None and attempt_of(conversation, {run}):
        raise IdentityError(
            "the conversation's id hashes to a rollout's; name another", reason=Reason.MALFORMED_IDENTITY
        )
    return Caller(
        holder=holder,
        rollout_id=next(iter(rollouts), None),
        attempt_id=next(iter(attempts), None),
        trace_id=trace_id,
        parent_span_id=span_id,
        claims=claims,
        conversation_key=None if rollouts else conversation,
    )


def _named(claims: Claims) -> tuple[list[tuple[RolloutId, AttemptId | None]], set[str]]:
    """The rollouts that are claimed, and those of Agent Lightning that are named."""
    named: list[tuple[RolloutId, AttemptId | None]] = []
    foreign: set[str] = set()
    for what in ("path", "api_key", "header", "baggage"):
        if (claim := getattr(claims, what)) is None:
            continue
        if is_lightning(name := claim.partition(".")[0]):
            foreign.add(name)
        else:
            named.append(_parse_claim(what, claim.removeprefix(ATTEMPT_PREFIX) if what == "api_key" else claim))
    return named, foreign


def _unproved(rollout: RolloutId, holder: Holder | None) -> ProofError:
    if holder is None:
        return ProofError(
            f"rollout {rollout} is a runner's: expected its credential, which its agent finds in OPENAI_API_KEY, got "
            "another key or none; send that variable as the API key",
            reason=Reason.NO_CREDENTIAL,
        )
    return ProofError(
        f"expected claims to the attempt of {holder}, whose credential this is, got one to another of rollout "
        f"{rollout}; name no attempt but your own",
        reason=Reason.OTHER_ATTEMPT,
    )


def _parse_claim(what: str, claim: str) -> tuple[RolloutId, AttemptId | None]:
    rollout, dot, attempt = claim.partition(".")
    try:
        return parse_rollout_id(rollout), parse_attempt_id(attempt) if dot else None
    except ValueError as error:
        raise IdentityError(f"{what}: {error}", reason=Reason.MALFORMED_IDENTITY) from None


def _parse_traceparent(header: str | None) -> tuple[TraceId | None, str | None]:
    """W3C Trace Context: a malformed header counts as absent."""
    match = _TRACEPARENT.fullmatch(header or "")
    if match is None or match[1] == "ff" or not match[2].strip("0") or not match[3].strip("0"):
        return None, None
    return TraceId(match[2]), match[3]


def leaves_record(http: Request, trains: bool, is_hidden: bool) -> bool:
    """Whether the agent lets the request leave a record; one that shows a credential of this run, also if it names no
    rollout, may not forbid it, nor one that could have hidden it (`is_hidden`). Raises RequestError."""
    said = http.headers.get(RECORD_HEADER)
    if said is not None and said.strip().lower() != "off":
        raise RequestError(f"{RECORD_HEADER}: expected off, or no such header, got another value")
    if said is not None and trains:
        raise RequestError(f"{RECORD_HEADER}: expected no such header, for calls of a rollout train; leave it out")
    if said is not None and is_hidden:
        raise RequestError(
            f"{RECORD_HEADER}: expected no such header while a runner's attempts are served, for a call without a key "
            "may be one of theirs; set [llm] token and send it, or leave the header out"
        )
    return said is None
