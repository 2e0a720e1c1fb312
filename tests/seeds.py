"""Random lives as a property: one test of many seeds, which are the same each time.

How many the hypothesis profile says (conftest.py): HYPOTHESIS_PROFILE=long for thousands. A failure names its seed, and
`@example(seed=..)` above the decorator repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st


def any_seed(test: Callable[..., None]) -> Callable[..., Any]:
    """Hands `seed` to the test. A seed says nothing of how simple its life is, so that none is looked for."""
    chosen = settings(
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[HealthCheck.too_slow],
    )
    return chosen(given(seed=st.integers(0, 2**32 - 1))(test))
