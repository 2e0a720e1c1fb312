"""How an exception of user code is told: its class, the line of the user's that it came through last, its message.

Loaded by the hosts with the user's Python; imports only the standard library.
In: an exception. Out: `grader raised KeyError at grade.py:9: 'x'`, which schemas/alarms/causes.py reads. Invariant:
the line is of no installed package and not ours. Failure: none; where no line is the user's, none is told.
"""

from __future__ import annotations

import os
import traceback

_NOT_USERS = (os.path.dirname(os.__file__), os.path.dirname(os.path.abspath(__file__)))


def raised(who: str, error: BaseException, limit: int) -> str:
    """At most `limit` characters."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [at for at in frames if not at.filename.startswith((*_NOT_USERS, "<")) and "-packages" not in at.filename]
    where = f" at {os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else ""
    return f"{who} raised {type(error).__name__}{where}: {error}"[:limit]
