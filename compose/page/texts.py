"""What the page is told beside topics: the text of tokens, what calls are worth by the run's rules.

In: a run. Out: functions for its views. Failure: a run whose policy's tokenizer lies nowhere here has none, and the
page shows what records tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import Reward
from tracegrad.streams.explain import ExplainedCall, explain
from tracegrad.streams.ratings import rated_anew

from ..run.wiring import Wiring

logger = logging.getLogger(__name__)
_FILE = "tokenizer.json"


def pieces_of(wiring: Wiring) -> Callable[[Sequence[int]], list[str]] | None:
    """By the tokenizer of the policy's model, or of a version of it; None where neither lies on this machine, or it
    cannot be read."""
    model = wiring.settings.policy.model
    folders = [Path(model)] if model is not None else []
    folders += sorted(wiring.run_dir.weights.glob("*"), reverse=True)
    file = next((folder / _FILE for folder in folders if (folder / _FILE).is_file()), None)
    if file is None:
        return None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more particular
        logger.warning("expected a tokenizer at %s, got: %s; token ids have no text", file, error)
        return None
    size = tokenizer.get_vocab_size(with_added_tokens=True)

    def pieces(ids: Sequence[int]) -> list[str]:
        """As many texts as ids; a character of several tokens stands at its last one."""
        stream = DecodeStream(skip_special_tokens=False)
        return [(stream.step(tokenizer, id_) or "") if 0 <= id_ < size else f"<{id_}>" for id_ in ids]

    return pieces


def explain_by(wiring: Wiring) -> Callable[[Episode, Sequence[Reward]], Mapping[str, ExplainedCall]]:
    """By the run's `[credit]` and `[air]`, and by what was said of a captured one behind its close."""
    credit, air = wiring.settings.credit, wiring.settings.air

    def of(episode: Episode, said: Sequence[Reward]) -> dict[str, ExplainedCall]:
        episode = rated_anew(episode, said) if said else episode
        return {one.call_id: one for one in explain(episode, credit, air)}

    return of
