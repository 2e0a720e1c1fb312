"""Strategy `anchor`: a call is compared with the calls of the group that began in the same state.

    return_t = as `return_to_go`, with its gamma (the source's is .95)
    A_t = A(R) + omega A(return_t among calls that began in one state)

The state is what the call was told: its agent, and the tokens that its prompt adds to the call that it goes on from
(the task, a tool's result), as the source's is the environment's observation and not the history. A prompt that leaves
its parent's tokens before their end bears where, and the parent's own state. A state that one rollout alone was in
compares with nobody, so its calls have A(R) alone, which is the trainer's: `[algorithm] final`, 1 of the recipe
`gigpo`, is 1 / omega.
Source: GiGPO (arXiv:2505.10978), equations 6 to 8. Ours counts a rollout that was in a state twice once in the mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tracegrad.schemas.records.calls import TOKEN_BYTES
from tracegrad.schemas.records.episodes import Episode, EpisodeCall

from .peers import peers_of_group
from .return_to_go import return_to_go
from .strategy import CallCredit, Terms

_HEX = 16
"""64 bits: a group has at most some 10^7 calls, whose states meet by chance once in 10^5 such groups."""


def anchor(members: Sequence[Episode], terms: Terms) -> list[list[CallCredit]]:
    """The strategy."""
    agents = peers_of_group(members, "rollout")
    return [
        [one._replace(peers=f"{name}@{state}") for one, name, state in zip(credits, named, states, strict=True)]
        for credits, named, states in zip(
            return_to_go(members, terms), agents, [states_of(one.calls) for one in members], strict=True
        )
    ]


def states_of(calls: Sequence[EpisodeCall]) -> list[str]:
    """In which state each call began; work grows with the tokens that calls add."""
    states: list[str] = []
    known: dict[str, tuple[int, str]] = {}
    for call in calls:
        length, before = known.get(call.parent_call_id or "", (0, ""))
        # It goes on from all of its parent's tokens, or is the first: what it adds is what it was told.
        place = "" if call.shared_tokens == length else f"{call.shared_tokens}/{before}"
        state = hashlib.sha256(place.encode() + b"\0" + call.suffix_ids).hexdigest()[:_HEX]
        states.append(state)
        added = (len(call.suffix_ids) + len(call.sampled_ids)) // TOKEN_BYTES
        known[call.call_id] = (call.shared_tokens + added, state)
    return states
