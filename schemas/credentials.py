"""Credentials: by what a gateway knows who asks, without state. Pure functions of the run's key.

    attempt   rt-<rollout>.<attempt>.<secret>    a command's, for that attempt alone
    host      rh-<host>.<secret>                 an agent host's, for the attempts that `/begin` bound to it
    runner    rr-<run hash>.<secret>             begins and ends attempts; no agent has it
    engine    re-<run hash>.<secret>             what our programs show to the engine that we start; no agent has it
    feedback  rf-<run hash>.<secret>             says what an agent's work was worth; no agent and no browser has it
    page      rp-<run hash>.<secret>             sees the run in a browser; no agent has it

What stands before the secret names the holder. Holders, as ids, are no secret: records and logs bear them; a
credential stands only in its holder's environment and in the header of its requests. The secret is
HMAC-SHA256(run key, holder), RFC 2104, cut to 128 bits; the holder's prefix keeps kinds apart.
In: the run's key and a name, or a text that somebody sent. Out: a credential, or the holder that it proves. Failure:
none; a text that proves nothing is None, told in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NewType

from .ids import RunHash

Holder = NewType("Holder", str)

ATTEMPT_PREFIX = "rt-"
"""Of a key that names an attempt, with a secret or (agents that no runner started) without; no real key is told by it,
so that none is ever recorded."""
_HOST_PREFIX = "rh-"
_RUNNER_PREFIX = "rr-"
_ENGINE_PREFIX = "re-"
_FEEDBACK_PREFIX = "rf-"
_PAGE_PREFIX = "rp-"
_DOMAIN = b"tracegrad/credential/1\0"
"""No other use of the run's key begins so."""
_SECRET_CHARS = 32


def attempt_holder(rollout: str, attempt: str) -> Holder:
    """The command that works on an attempt."""
    return Holder(f"{ATTEMPT_PREFIX}{rollout}.{attempt}")


def new_host() -> Holder:
    """Drawn for an agent host that starts."""
    return Holder(f"{_HOST_PREFIX}{secrets.token_hex(8)}")


def runner_holder(run: RunHash) -> Holder:
    """The runners of a run."""
    return Holder(f"{_RUNNER_PREFIX}{run}")


def engine_holder(run: RunHash) -> Holder:
    """Whoever may ask the run's engine."""
    return Holder(f"{_ENGINE_PREFIX}{run}")


def feedback_holder(run: RunHash) -> Holder:
    """Whoever reports feedback to the run: the program in which people rate, never the agent that is rated."""
    return Holder(f"{_FEEDBACK_PREFIX}{run}")


def page_holder(run: RunHash) -> Holder:
    """Whoever may look at the run's page: it shows prompts and answers."""
    return Holder(f"{_PAGE_PREFIX}{run}")


def is_host(holder: Holder) -> bool:
    """Whether it is an agent host, so that others say which attempts are its own."""
    return holder.startswith(_HOST_PREFIX)


def credential(key: bytes, holder: Holder) -> str:
    """What the holder shows; `key` is the run's."""
    return f"{holder}.{_secret(key, holder)}"


def bearer(token: str | None) -> dict[str, str]:
    """The header that shows a credential or another token; None: no header."""
    return {"authorization": f"Bearer {token}"} if token else {}


def proved_holder(key: bytes, text: str) -> Holder | None:
    """Whose credential of this run the text is."""
    holder, _, secret = text.rpartition(".")
    is_proved = hmac.compare_digest(secret.encode(), _secret(key, holder).encode())
    return Holder(holder) if is_proved and holder else None


def may_claim(holder: Holder | None, rollout: str, attempt: str | None) -> bool:
    """Whether a request may name an attempt (None: any of the rollout) of the run whose credential its sender shows.

    Of an agent host its run alone is known here: which attempts are its own say `/begin` and the end event.
    """
    if holder is None:
        return False
    own = attempt_holder(rollout, attempt or "")
    return is_host(holder) or (holder == own if attempt else holder.startswith(own))


def claimed_attempt(text: str) -> str | None:
    """The holder that a key of the form `rt-` names, proved or not, and never its secret; None: another key."""
    return ".".join(text.split(".")[:2]) if text.startswith(ATTEMPT_PREFIX) else None


def masked(data: bytes, shown: str) -> bytes:
    """The bytes with the secret of the credential `shown` blotted out, their number unchanged: what a holder quotes
    in a span or an error goes no further."""
    secret = shown.rpartition(".")[2].encode()
    return data.replace(secret, b"*" * len(secret)) if len(secret) == _SECRET_CHARS else data


def _secret(key: bytes, holder: str) -> str:
    return hmac.new(key, _DOMAIN + holder.encode(), hashlib.sha256).hexdigest()[:_SECRET_CHARS]
