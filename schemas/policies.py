"""Which policy has which partition: the one place to change for a run that trains several.

In: a policy's name, and all that the run trains. Out: its partition of the topics that have one for each policy
(`partitions="policies"` in topics.py). Today's settings name one policy, so whoever is not told which names there are
asks without; with several, each of those calls has to be told.
"""

from __future__ import annotations

from collections.abc import Sequence


def partition_of(policy: str | None = None, policies: Sequence[str] = ()) -> int:
    """The policy's place among the run's, in the order of the settings; 0 where the run's only one is meant.

    Raises ValueError for a policy that the run does not train.
    """
    return policies.index(policy or "") if policies else 0
