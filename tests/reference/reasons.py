"""docs/reasons.md, made of the reasons: `python -m tests.reference.reasons > docs/reasons.md`.

In: nothing. Out: the page. Failure: none.
"""

from __future__ import annotations

import sys

from tracegrad.schemas.reasons import Reason, row_of

_HEAD = """# Reasons

Whatever is left out is counted, and says why by one of these words: in the headers of a dead letter, on a record
(`masked` of a call, `excluded` of a rollout or a group, `skipped` of a step), in an answer's `code`, as the label of a
metric. Where people read such a word, its sentence stands behind it; a word of a later release stands alone. A row is
the docstring of the reason in `schemas/reasons.py`. `unwritable` is written with a topic: `unwritable_episodes`.

| reason | seen as | what it means | what to do |
|---|---|---|---|"""


def reasons_markdown() -> str:
    """The text of docs/reasons.md."""
    rows = ((word, row_of(word)) for word in sorted(Reason))
    told = (f"| `{word}` | {', '.join(row.seen)} | {row.sentence} | {row.remedy} |" for word, row in rows)
    return "\n".join([_HEAD, *told, ""])


if __name__ == "__main__":
    sys.stdout.write(reasons_markdown())
