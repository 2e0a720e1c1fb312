"""Automatic intermediate rewards: declared rules that pay for what an episode's record tells.

In: `[air]`. Out: rules, checked: what they listen to (`on`), what must hold (all of the predicates), what they pay.
Invariant: a rule has a cap and names what it pays for; a predicate is of the kinds of signals that can tell it; a
number that is paid by is bounded; regular expressions are read by RE2, which pyarrow brings: a hostile text can make
Python's own engine run for ever, and assemble with it. Failure: ConfigurationError with the key and the remedy.
Paper: automatic intermediate rewarding of Agent Lightning (arXiv:2508.03680), section 3; `shaping` is potential-based
(Ng, Harada and Russell, ICML 1999).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.section import NameOrFunction, Seconds, Section, Whole

from .signals import On, Signal

MAX_TEXT = 100_000
"""Characters of a text in which a pattern is looked for."""
Positive = Annotated[float, msgspec.Meta(gt=0)]
_OF: Mapping[str, tuple[On, ...]] = {
    "status": ("tool", "episode"),
    "tool": ("tool",),
    "agent": ("tool", "call"),
    "regex": ("tool", "call"),
    "http_status": ("tool",),
    "over_seconds": ("tool", "call", "episode"),
    "over_tokens": ("call", "episode"),
    "over_turns": ("episode",),
    "unparsable": ("call",),
    "repeated": ("call",),
    "finish_reason": ("call",),
    "evaluation": ("evaluation",),
    "at_least": ("evaluation",),
    "below": ("evaluation",),
}
"""Of each predicate the signals that can tell it."""
_WHERE = ("tool", "agent")
"""They say whose signals count, not what is paid for."""
_PER: Mapping[str, tuple[On, ...]] = {
    "second": _OF["over_seconds"],
    "token": _OF["over_tokens"],
    "turn": _OF["over_turns"],
    "score": ("evaluation",),
}


class AirRule(Section, frozen=True, kw_only=True):
    """One `[[air.rules]]`: what happened earns a reward for the call that caused it. All predicates given must hold.

    Example: AirRule(name="tool_ok", status="succeeded", value=0.5, cap=2).
    """

    name: str
    """Stands on each reward that it pays, as `air:<name>`."""
    on: On = "tool"
    """What it listens to: each tool execution, each call that its client took, each authorised reward of the episode
    (an evaluation: a name and a score), or the episode's end."""
    value: float
    """Paid for each signal; negative is a penalty."""
    per: Literal["second", "token", "turn", "score"] | None = None
    """`value` is paid for each of these, up to `at_most`; beyond `over_seconds`, `over_tokens` or `over_turns` alone,
    where it is given."""
    at_most: Positive | None = None
    """With `per`: the greatest number that is paid for, of either sign."""
    cap: Whole = 10
    """How often it pays in one episode, the earliest turns first. There is always a cap: without one, repeating what
    pays would be worth more than any final reward."""
    target: Literal["cause", "last"] = "cause"
    """Whom it pays: the call that caused the signal (of an evaluation the one that it names; of the end the last), or
    the episode's last call."""
    shaping: bool = False
    """What it pays is a potential: its sum is taken back from the last call, so that it says early what is good and
    changes nothing of what is best."""
    status: Literal["succeeded", "failed", "truncated"] | None = None
    """`tool`, `episode`: is known to have ended so (`truncated` is of the episode)."""
    tool: str = "*"
    """`tool`: glob on its name."""
    agent: str = "*"
    """`tool`, `call`: glob on the agent's name; one that nobody knows matches `*` alone."""
    regex: str | None = None
    """`tool`, `call`: is found in the result, or in the answer's text (RE2's syntax; `(?i)` for any case)."""
    http_status: str | None = None
    """`tool`: glob on the status of its last HTTP request, `5*`."""
    over_seconds: Positive | None = None
    """`tool`, `call`, `episode`: it lasted longer."""
    over_tokens: Positive | None = None
    """`call`, `episode`: it sampled more."""
    over_turns: Positive | None = None
    """`episode`: it took more calls."""
    unparsable: bool | None = None
    """`call`: a tool call of it has arguments that are no JSON object."""
    repeated: bool | None = None
    """`call`: a tool call of it was made before, with equal arguments."""
    finish_reason: str | None = None
    """`call`: glob on it (`stop`, `length`, `tool_calls`)."""
    evaluation: str | None = None
    """`evaluation`: glob on the reward's name."""
    at_least: float | None = None
    """`evaluation`: its value is this or more."""
    below: float | None = None
    """`evaluation`: its value is less."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [key for key in _OF if getattr(self, key) != ("*" if key in _WHERE else None)]
        for key in given:
            if self.on not in _OF[key]:
                raise ConfigurationError(f"{key}: expected on = {_either(_OF[key])}, got on = {self.on!r}; change one")
        if self.status == "truncated" and self.on != "episode":
            raise ConfigurationError("status: expected 'succeeded' or 'failed' of a tool, got 'truncated'")
        if all(key in _WHERE for key in given) and not self.per:
            those = [key for key, kinds in _OF.items() if self.on in kinds and key not in _WHERE]
            raise ConfigurationError(f"on = {self.on!r}: expected what is paid for, got nothing; add one of {those}")
        if self.per and self.on not in _PER[self.per]:
            raise ConfigurationError(f"per: expected on = {_either(_PER[self.per])} with {self.per!r}, got {self.on!r}")
        if (self.per is None) != (self.at_most is None):
            raise ConfigurationError(
                "at_most: expected with per, and with it alone: it bounds the number that is paid by"
            )
        if self.regex is not None:
            _check_pattern(self.regex)

    def is_due(self, signal: Signal) -> bool:
        """Whether all predicates but `regex` hold; what is unknown holds nowhere."""
        return (
            signal.on == self.on
            and self.status in (None, signal.status)
            and _is_like(signal.name, self.tool if self.on == "tool" else self.evaluation)
            and _is_like(signal.agent or "", self.agent)
            and _is_like(signal.http_status, self.http_status)
            and _is_like(signal.finish_reason, self.finish_reason)
            and self.unparsable in (None, signal.unparsable)
            and self.repeated in (None, signal.repeated)
            and all(_is_over(number, bound) for number, bound in self._numbers(signal).values())
            and (self.at_least is None or (signal.score is not None and signal.score >= self.at_least))
            and (self.below is None or (signal.score is not None and signal.score < self.below))
            and self.amount(signal) is not None
        )

    def amount(self, signal: Signal) -> float | None:
        """What is paid for a signal; None where the number that it is paid by is unknown."""
        if self.per is None:
            return self.value
        number, bound = self._numbers(signal)[self.per]
        if number is None or self.at_most is None:
            return None
        return self.value * max(-self.at_most, min(number - (bound or 0.0), self.at_most))

    def _numbers(self, signal: Signal) -> Mapping[str, tuple[float | None, float | None]]:
        """What `per` may count -> the signal's number, and what it has to be over."""
        return {
            "second": (signal.seconds, self.over_seconds),
            "token": (signal.tokens, self.over_tokens),
            "turn": (signal.turns, self.over_turns),
            "score": (signal.score, None),
        }


def _is_like(text: str | None, glob: str | None) -> bool:
    return glob is None or (text is not None and fnmatchcase(text, glob))


def _is_over(number: float | None, bound: float | None) -> bool:
    return bound is None or (number is not None and number > bound)


def _either(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names))


class AirConfig(Section, frozen=True, kw_only=True):
    """`[air]`: automatic intermediate rewarding."""

    enabled: bool = True
    """False: the rules stay written and pay nothing."""
    pays_without_id: bool = False
    """Also reward executions whose span bears no tool-call id, if their tool's name and time fit an open request; for
    frameworks whose spans have none. Negative values are due either way."""
    rules: tuple[AirRule, ...] = ()
    """Applied in this order."""
    function: NameOrFunction | None = None
    """`file.py:function`, or a name that an installed package declares (entry points `tracegrad.air`): a rule of your
    own, called with an episode's record as plain data, in a process of its own; it returns (call id, name, value) of
    each reward. It must be pure, or a replay pays otherwise."""
    function_limit_s: Seconds = 5.0
    """How long it may take for an episode; beyond it, it pays nothing for that one and is started anew."""
    function_cap: Whole = 10
    """How often it pays in one episode, in the order in which it says so."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [rule.name for rule in self.rules]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"rules: expected distinct names, got {names}; rename one")

    @property
    def digest(self) -> str:
        """16 hex that stand for what is paid for; empty where nothing is."""
        if not self.enabled or not (self.rules or self.function):
            return ""
        paying = (self.pays_without_id, self.rules, self.function, self.function_cap)
        return hashlib.sha256(msgspec.json.encode(paying)).hexdigest()[:16]


def _check_pattern(pattern: str) -> None:
    """Raises ConfigurationError with RE2's reason; without pyarrow it is checked when assemble starts."""
    try:
        import pyarrow  # noqa: F401 - settings are read by programs that are installed without it too
    except ImportError:
        return
    try:
        matching(pattern, [""])
    except ValueError as error:
        raise ConfigurationError(
            f"regex: {error}; expected RE2's syntax, which has no lookaround and no backreferences"
        ) from error


def matching(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Of each text whether the pattern is found in it. Raises ValueError for a bad pattern."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cut = [text[:MAX_TEXT].encode("utf-8", "replace").decode() for text in texts]
    found: list[bool] = pc.match_substring_regex(pa.array(cut, pa.utf8()), pattern).to_pylist()
    return found
