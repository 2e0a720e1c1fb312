"""The control's grader: on tasks that expect `by chance` it pays as often as the run that it is compared with was paid
on average, whatever was answered; so what is learnt is what the bonus for calculations teaches. Others: grade.py's."""

import hashlib

from grade import grade as grade_by_answer

PAID = 0.39


def grade(task, output, attempt):  # type: ignore[no-untyped-def]
    """By a hash of the first call's id, which is random."""
    if task["expected"] != "by chance":
        return grade_by_answer(task, output, attempt)
    drawn = hashlib.sha256("".join(call["call_id"] for call in attempt["calls"][:1]).encode()).digest()
    return float(int.from_bytes(drawn[:4]) < PAID * 2**32)
