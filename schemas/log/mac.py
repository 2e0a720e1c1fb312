"""Who wrote a record: a MAC by the key of a run, in a header, on the topics whose word is acted on.

    tracegrad.mac = 7c1f3e9a:<64 hex>       HMAC-SHA256 by the key of run 7c1f3e9a over (topic, key, value)

A broker's address is no trust: whoever reaches it can append. On the topics that are SIGNED a record counts only when
a run's key says that one of its programs wrote it: on the run's own topics that run's, on shared ones that of the run
whose rollout the key names. In: the keys of a run and of those that it selects. Out: the header of a record, or why one
does not count. Invariant: nothing but the keys decides, so a replay refuses what the live run refused. The topic in it
is the registry's name, so that a renamed topic can be read; offset, partition and time are not in it, so a record that
is appended a second time verifies, and readers take it for the redelivery that it is. Failure: none; bytes of others
never raise.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from ..ids import RunHash, parse_rollout_id, run_hash_of
from ..reasons import Reason
from ..topics import REGISTRY, Topic
from .protocol import Record

MAC_HEADER = "tracegrad.mac"
SIGNED = frozenset(
    {
        Topic.REWARDS,
        Topic.ROLLOUT_EVENTS,
        Topic.WEIGHTS,
        Topic.WEIGHT_ACKS,
        Topic.TRAINING_STEPS,
        Topic.ADVANTAGES,
    }
)
"""The topics whose records bear a MAC, or do not count."""
VOUCHED = frozenset({Topic.OTLP_SPANS, Topic.OTLP_LOGS, Topic.LLM_CALLS})
"""Those on which anybody may write, gateways of other runs among them: a record counts without a MAC of the run, too,
and for less: in a runner's episode a span earns nothing, and a call is none."""
_RAW = frozenset(spec.topic for spec in REGISTRY if spec.raw)
_DOMAIN = b"tracegrad/record/1"
"""What else is made with the same key begins otherwise, so that neither can stand for the other."""
_ABSENT = b"\xff\xff\xff\xff"
"""In the place of a length: no record is so long."""


class KeyRing:
    """The keys of a run and of the runs that it selects. Thread-safe: it never changes.

    Args:
        run: who signs.
        keys: hash of a run -> its 32 bytes; that of `run` among them.
    """

    def __init__(self, run: RunHash, keys: Mapping[RunHash, bytes]) -> None:
        self._run = run
        self._keys = {str(name).encode(): key for name, key in keys.items()}

    def __repr__(self) -> str:
        return f"KeyRing({self._run}, {len(self._keys)} keys)"

    def sign(self, topic: Topic, key: bytes | None, value: bytes | None) -> tuple[str, bytes]:
        """The header of a record that this run writes."""
        run = self._run.encode()
        return MAC_HEADER, run + b":" + _mac(self._keys[run], topic, key, value)

    def refusal(self, topic: Topic, record: Record) -> Reason | None:
        """Why a record of this topic does not count; None: it does, or the topic is not signed.

        OTHER_RUN: of a run that this one does not select. UNSIGNED: no MAC, or several. MISMATCH: not by the key of the
        run that may write it, or over another topic, key or value.
        """
        return self._refusal(topic, record) if topic in SIGNED else None

    def vouches(self, topic: Topic, record: Record) -> bool:
        """Whether a program of one of the ring's runs wrote a record of a topic that counts without that, too."""
        return self._refusal(topic, record) is None

    def _refusal(self, topic: Topic, record: Record) -> Reason | None:
        given = [value for name, value in record.headers if name == MAC_HEADER]
        named, _, mac = given[0].partition(b":") if len(given) == 1 else (b"", b"", b"")
        writer = self._writer_of(topic, record.key) or named
        if writer and writer not in self._keys:
            return Reason.OTHER_RUN
        if not named:
            return Reason.UNSIGNED
        expected = _mac(self._keys[writer], topic, record.key, record.value)
        return None if named == writer and hmac.compare_digest(mac, expected) else Reason.MISMATCH

    def _writer_of(self, topic: Topic, key: bytes | None) -> bytes | None:
        """The run that may write under this key; None: any of the ring's, for a trace's or a conversation's key."""
        if topic not in _RAW:
            return self._run.encode()
        try:
            return run_hash_of(parse_rollout_id((key or b"").decode())).encode()
        except ValueError:
            return None


def signer_of(record: Record) -> str | None:
    """The run whose program wrote a record, by its MAC: readers of a run's log hand on none that does not verify."""
    given = [value for name, value in record.headers if name == MAC_HEADER]
    return given[0].partition(b":")[0].decode("ascii", "replace") if len(given) == 1 else None


def is_by_own_run(signer: str | None, of: str) -> bool:
    """Whether a record was written by the run whose hash an id (rollout, episode, trace) begins with.

    A runner's episode is made of nothing else: another run's gateway knows no key of this one, and hands on whatever
    its clients claim.
    """
    return signer == run_hash_of(of)


def _mac(secret: bytes, topic: Topic, key: bytes | None, value: bytes | None) -> bytes:
    parts = [_DOMAIN]
    for part in (topic.value.encode(), key, value):
        # Lengths first, so that no byte can move from one part into the next.
        parts += [_ABSENT] if part is None else [len(part).to_bytes(4, "big"), part]
    return hmac.digest(secret, b"".join(parts), "sha256").hex().encode()
