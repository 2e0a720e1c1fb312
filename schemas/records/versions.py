"""What a weight version is called: (run, version, epoch), and which version sampled which tokens.

In and out: the one label that engines bear and folders are named by. Invariant: `parse_label(version.label)` gives the
version back, and no other text parses: not `default`, which a restarted engine says, nor a number with leading zeros.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ..ids import RunHash

_LABEL = re.compile(r"([0-9a-f]{8})-v(0|[1-9][0-9]{0,11})-e(0|[1-9][0-9]{0,8})")


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a policy; records that name one extend it. Version(run="7c1f3e9a", version=18, epoch=4), say."""

    run: RunHash
    """Whose policy it is: numbers of two runs cannot be compared."""
    version: int
    """0 is the model the run started from; versions only grow."""
    epoch: int
    """Of the trainer that published it."""

    @property
    def label(self) -> str:
        """What an engine that serves it calls it, and its folder's name: `7c1f3e9a-v18-e4`."""
        return f"{self.run}-v{self.version}-e{self.epoch}"


class VersionSpan(Version, frozen=True, kw_only=True):
    """From sampled token `start` on (counted within the call), this version was sampling."""

    start: int


def parse_label(text: str) -> Version | None:
    """The version of a label; None for any other text."""
    match = _LABEL.fullmatch(text)
    return Version(run=RunHash(match[1]), version=int(match[2]), epoch=int(match[3])) if match else None


def are_complete(spans: Sequence[VersionSpan], num_tokens: int) -> bool:
    """Whether the spans tell each token's version: the first starts at 0, starts ascend, none lies past the end, and
    no number is negative."""
    starts = [span.start for span in spans]
    if any(span.version < 0 or span.epoch < 0 for span in spans):
        return False
    return bool(starts) and starts[0] == 0 and starts == sorted(set(starts)) and starts[-1] <= num_tokens
