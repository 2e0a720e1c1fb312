"""How the text of a tool's result reads: like a failure, perhaps like one, or like anything else.

In: a text that no field explains. Out: True, None (it may be one) or False. Frameworks that report failure in the text
only write few forms; these are failures. A short text, or the beginning of a long one, that has words of failure may
as well be the world's ("Failed banks, by year"). Invariant: only a few hundred characters at either end are looked at.
"""

from __future__ import annotations

import re

_MAX_LINE = 300
_MAX_SHORT = 200
"""Characters of a text that is doubted wherever its words of failure stand: reports are short, documents are not."""
_MAX_BEGINNING = 40
_DECORATION = " \t\r\n\"'*#>`\u274c\u26a0\ufe0f\U0001f6ab\U0001f6d1"
_EXCEPTION = r"""
  (?: Uncaught\s+ | Unhandled\s+ )?
  (?: (?:[A-Za-z_$][\w$]*(?:\.|::))* [A-Za-z_][\w$]*(?:Error|Exception) | (?i:error|exception|fatal(?:\ error)?) )
  (?: \s*\[\w+\] )?
  (?: :(?!\s*(?:none|nil|null|no|n/a|[-+\d.,%]+)?(?:\s*$|\s+\()) (?=\s*\S) | \((?=['"\d)]) )
"""
"""`sqlite3.OperationalError: x`, `TypeError [ERR_X]: x`, `KeyError('x')`, `error: x`; not `Error: 0.02`, a figure."""
_FAILURE = re.compile(
    rf"""(?x)
    {_EXCEPTION}
    | (?i: traceback\ \(most\ recent\ call\ last\)
    | an\ error\ occurred\ while\ running\ the\ tool\b | an\ error\ occurred\ \(\w+\)\ when\ calling\b
    | failed\ to\ invoke\ tool\b | [1-9]\d*\ validation\ errors?\ (?:for\b|:) | [1-9]\d*\ validation\ errors?:?$
    | (?:error|exception|failed|failure|traceback) [.!]* $
    | \[(?:error|fatal)\] | error\[\w+\]: | <(?:tool_use_)?error\b
    | exception\ in\ thread | thread\ '[^']*'\ panicked | panic: | segmentation\ fault | npm\ err!
    | error\ (?:while|when|executing|calling|running|invoking|occurred|parsing|reading|opening|fetching)\b .* :
    | error\ code:\s*\d+\ -
    | command\ .* returned\ non-zero\ exit\ status\b
    | (?:tool|function|command|request|execution|query)\ (?:execution\ |call\ )?
      (?:failed|timed\ out|error) (?: \s*[:.!] | \ (?:with|because|after|due)\b | $ )
    | (?:[\w./-]+:\ )+ .* (?:command\ not\ found|no\ such\ file\ or\ directory|permission\ denied) $
    | HTTP(?:/[\d.]+)?\ [45]\d\d\b
    | [45]\d\d\ (?:client\ error|server\ error|not\ found|internal\ server|bad\ request|bad\ gateway|unauthorized
      |forbidden|service\ unavailable|too\ many|gateway\ time)
    )"""
)
_EXIT_LINE = re.compile(
    r"\W*(?:\w+ ){0,2}?(?:exit(?:ed)?|return)(?: with)?(?: exit)?[ _]?(?:code|status)\s*[:=>]?\s*(-?\d{1,10})"
    r"(?:</\w+>?)?\W*",
    re.IGNORECASE,
)
_RULE = "-" * 10
_JUPYTER = re.compile(r"-{10,}\s*\n\w+\s+Traceback \(most recent call last\)")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_ERROR_PAGE = re.compile(r"<(?:title|h1)[^>]*>\s*(?:error\s+)?[45]\d\d\b", re.IGNORECASE)
"""A server's own page, or a page about one."""
_IN_VAIN = "no replacement was performed"
"""What Anthropic's editing tool says, and a document may."""
_WORDS = re.compile(
    r"\b(?:errors?|exceptions?|fail(?:ed|ure|s)?|could ?n[o']t|cannot|can ?not|can't|unable|invalid|denied|refused"
    r"|forbidden|unauthori[sz]ed|timed out|time-?out|not found|no such|abort(?:ed)?|unknown|unsupported|malformed"
    r"|err|by zero|\w*[a-z0-9](?-i:Error|Exception)"
    r"|fatal|exceeded|crashed|missing|not allowed|unavailable|not exist|traceback|panic|killed|went wrong|sorry)\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"\b(?:no|0|zero|without|any)\s+(?:\w+\s+)?(?:errors?|exceptions?|fail(?:ures?|ed))\b|\b(?:error|fail)-(?:free|safe)\b"
    r"|\b(?:errors?|exceptions?|fail(?:ures?|ed))(?:\s+\w+)?\s*[:=]\s*(?:none|0)\b"
    r"|\berror\s+(?:rates?|handling|bars?|margins?|correction|budgets?|analysis|messages?)\b",
    re.IGNORECASE,
)


def of_text(text: str) -> bool | None:
    """Whether it reads like a failure; None: it may."""
    head = text[: 4 * _MAX_LINE].lstrip(_DECORATION)
    line = head.split("\n", 1)[0][:_MAX_LINE].rstrip(_DECORATION)
    is_ruled = _RULE in head[:_MAX_BEGINNING]
    if _FAILURE.match(line) or (is_ruled and _JUPYTER.match(_COLOURS.sub("", text[:_MAX_LINE].lstrip()))):
        return True
    if line.lower().startswith(_IN_VAIN) or (head[:1] == "<" and _ERROR_PAGE.search(head)):
        return None
    tail = text[-_MAX_LINE:].rstrip()
    last = tail.rsplit("\n", 1)[-1]
    for exit_line in filter(None, (_EXIT_LINE.fullmatch(line), _EXIT_LINE.fullmatch(last))):
        return int(exit_line[1]) != 0
    # A log or a source file may end like this too, so it proves nothing.
    is_doubtful = "Traceback (most recent call last)" in text[:20_000] or ("\n" in tail and _FAILURE.match(last))
    return None if is_doubtful or _WORDS.search(_suspect(text, head)) else False


def _suspect(text: str, head: str) -> str:
    """The part of the text whose words of failure count."""
    calm = _HARMLESS.sub(" ", head[:_MAX_LINE])
    return calm if len(text) <= _MAX_SHORT else calm[:_MAX_BEGINNING]
