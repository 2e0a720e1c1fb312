"""What the episodes of a history are worth: by evaluations in its spans, a file of rewards, a grader of the user's.

    task {id, input, expected}   input: the user's first message to the agent that was asked first, or what `[history]
                                 task` makes of that call's messages; expected and id: of the `[history] tasks` file,
                                 where its input is equal; else the id is a hash
    output                       the last answer of that agent which calls no tool
    [history] rewards            JSON lines or CSV: one of response_id, span_id, trace_id, conversation; name, value

In: episodes whose calls spans told. Out: these with a task, an output and rewards; how many rows of the file fit none.
Invariants: as regrade.py's of grades; a row counts once, the last of one name for one thing; equal inputs give equal
records. Failure: ConfigurationError for a file that cannot be read, with the line.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from tracegrad.producers.tasks.dataset import read_tasks
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.metrics import TOLD_CALLS, Metrics
from tracegrad.schemas.reasons import reason_text
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.facts import CallFact
from tracegrad.schemas.records.rollouts import GroupRef, Reward, RolloutRequest, is_usable
from tracegrad.schemas.records.tasks import Task
from tracegrad.schemas.records.told import ChatMessage
from tracegrad.schemas.section import function_of
from tracegrad.streams.regrade import graded_anew

from ..run.run_dir import RunDir
from ..run.settings import RunSettings
from ..run.show import Show
from .regrade import RecordedTasks, Regrader, grading

_MAX_REASONS, _MAX_REASON = 20, 200
InputOf = Callable[[Sequence[ChatMessage]], str]
_KINDS = ("response_id", "span_id", "trace_id", "conversation")


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    value: float
    name: str = "reward"
    response_id: str | None = None
    span_id: str | None = None
    trace_id: str | None = None
    conversation: str | None = None


class RewardFile:
    """What somebody said of calls, traces or conversations, by their ids. Raises ConfigurationError."""

    def __init__(self, path: Path) -> None:
        self._source = f"file:{path.name}"
        self._rows: dict[tuple[str, str], dict[str, float]] = {}
        self._found: set[tuple[str, str]] = set()
        self.num_rows = self.num_doubled = 0
        for number, row in enumerate(_rows(path), start=1):
            named = [(kind, id_) for kind in _KINDS if (id_ := getattr(row, kind))]
            named = [(kind, conversation_key(id_) if kind == "conversation" else id_) for kind, id_ in named]
            if len(named) != 1 or not is_usable(row.value):
                raise ConfigurationError(
                    f"[history] rewards: {path}, row {number}: expected one of {', '.join(_KINDS)}, and a number as "
                    "value, got another"
                )
            of_one = self._rows.setdefault(named[0], {})
            self.num_rows += 1
            self.num_doubled += row.name in of_one
            of_one[row.name] = row.value

    @property
    def num_unmatched(self) -> int:
        """Things of which no episode has come."""
        return len(self._rows.keys() - self._found)

    def rewards(self, episode: Episode, facts: Sequence[CallFact]) -> Iterator[Reward]:
        """Those of an episode."""
        targets: dict[tuple[str, str], str | None] = {("trace_id", fact.call.trace_id or ""): None for fact in facts}
        targets |= {("span_id", fact.call.parent_span_id or ""): fact.call.call_id for fact in facts}
        targets |= {("response_id", fact.call.call_id): fact.call.call_id for fact in facts}
        targets["conversation", episode.conversation or ""] = None
        for place in sorted(self._rows.keys() & targets.keys()):
            self._found.add(place)
            for name, value in self._rows[place].items():
                yield _reward(name, value, targets.get(place), self._source, "/".join((*place, name)))


def _reward(name: str, value: float, target: str | None, source: str, key: str) -> Reward:
    said = {"name": name, "value": value, "target": target, "source": source, "idempotency_key": key}
    return msgspec.convert({"rollout_id": "", "attempt_id": "", **said}, Reward)


def _said_in_spans(facts: Sequence[CallFact]) -> Iterator[Reward]:
    """Of an answer whose id its span tells; else of the trace, as of a live run's evaluations."""
    for fact in facts:
        target = fact.call.call_id if fact.told and fact.told.response_id else None
        for name, value in fact.told.rewards if fact.told else ():
            yield _reward(name, value, target, "span", f"{fact.call.call_id}/{name}")


def _rows(path: Path) -> Iterator[_Row]:
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            if path.suffix == ".csv":
                for row in csv.DictReader(lines):
                    told = {name: value for name, value in row.items() if value}
                    yield msgspec.convert(told, _Row, strict=False)
            else:
                yield from (msgspec.json.decode(line, type=_Row) for line in lines if line.strip())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"[history] rewards: {path}: expected JSON lines or CSV with one of {', '.join(_KINDS)}, value, and maybe "
            f"name, got: {error}"
        ) from error


class HistoryJudge:
    """Rates one episode after another.

    Args:
        tasks: a file of them; None: what is expected is not known.
        rewards: a file of them, or None.
        grader: who is asked, or None.
        metrics: of the folds, which count told calls.
        asked: a task's input, of the messages of an episode's first call; None: the first of the user's.
    """

    def __init__(
        self,
        tasks: Path | None,
        rewards: Path | None,
        grader: Regrader | None,
        metrics: Metrics,
        asked: InputOf | None = None,
    ) -> None:
        self._asked = asked or _first_of_user
        self.counts: Counter[str] = Counter()
        self._metrics = metrics
        self._unknown = ""
        """An input that is no task's of the file."""
        self._unrated: Counter[str] = Counter()
        """Why the grader gave no reward."""
        self._tasks = {_text(task.input): task for task in read_tasks(tasks)} if tasks is not None else {}
        self._rewards = RewardFile(rewards) if rewards is not None else None
        self._grader = grader

    def __call__(self, episode: Episode, facts: Sequence[CallFact]) -> Episode:
        """The episode as it is rated."""
        task, output = self._task(facts), _output(episode)
        self.counts["tasks"] += task.expected is not None
        # An agent that gave no answer is rated for it, as in a live run.
        episode = msgspec.structs.replace(episode, task_id=task.id, output=json.dumps(output))
        given, why = [*_said_in_spans(facts)], ""
        if self._rewards is not None:
            given += self._rewards.rewards(episode, facts)
        if self._grader is not None:
            request = RolloutRequest(
                rollout_id=episode.episode_id,
                group=GroupRef(id=episode.episode_id, size=1, member=0, index=0),
                task_id=task.id,
                input=task.input,
                expected=task.expected,
                policy=episode.policy or "",
                purpose=Purpose.UNKNOWN,
            )
            of_grader, why = self._grader.given(episode, [fact.call for fact in facts], request)
            given += of_grader
        if not given and not why:
            return episode
        rated = graded_anew(episode, given, replaced=(), why=why)
        self.counts["rated" if rated.is_rated else "unrated"] += 1
        if not rated.is_rated:
            self._unrated[rated.unscored[:_MAX_REASON] if len(self._unrated) < _MAX_REASONS else "others"] += 1
        return rated

    def _task(self, facts: Sequence[CallFact]) -> Task:
        told = next((fact.told.messages for fact in facts if fact.told and fact.told.messages), ())
        asked = self._asked(told)
        found = self._tasks.get(asked.strip())
        if found is None:
            self._unknown = asked
        return found or Task(id=hashlib.sha256(asked.encode()).hexdigest()[:16], input=asked)

    def show_result(self, show: Show) -> None:
        """How many calls the history tells, and why those that do not train do not; what they were rated."""
        told = {why: int(num) for (why,), num in self._metrics.series().get(TOLD_CALLS, {}).items()}
        lines = [f"calls that spans tell: {sum(told.values())}"]
        lines += [f"  {told[why]} {reason_text(why)}" for why in sorted(told, key=lambda why: (-told[why], why))]
        show.result("told_calls", told, lines)
        if not told:
            raise ConfigurationError(
                "[history]: expected calls of its models, agents and services, got none; --dry-run lists what there is"
            )
        fields = dict(self.counts)
        if self._grader is not None and not fields.get("rated") and self._unrated:
            why = ", ".join(f"{num} {reason}" for reason, num in self._unrated.most_common())
            raise ConfigurationError(f"--grader: expected episodes that it gives a reward, got none: {why}")
        lines = [f"rated: {fields.get('rated', 0)} episodes"]
        lines += [f"  {num} without a reward: {reason}" for reason, num in self._unrated.most_common()]
        if self._tasks:
            lines.append(f"tasks: {fields.get('tasks', 0)} episodes begin with an input of the file")
            if self._unknown:
                inputs = [text[:_MAX_REASON] for text in (next(iter(self._tasks)), self._unknown)]
                lines.append("  of others no task is known: expected an input such as {!r}, got {!r}".format(*inputs))
        if self._rewards is not None:
            rows = (self._rewards.num_rows, self._rewards.num_unmatched, self._rewards.num_doubled)
            fields |= dict(zip(("rows", "rows_unmatched", "rows_doubled"), rows, strict=True))
            lines.append("rewards: {} rows; {} things in them are in no episode, {} are said again".format(*rows))
        show.result("rated", fields, lines)


def _first_of_user(messages: Sequence[ChatMessage]) -> str:
    return next((one.content for one in messages if one.role == "user"), None) or ""


def _input_by(reference: str) -> InputOf:
    """By a function of the user's."""
    function = function_of(reference, "[history] task")

    def asked(messages: Sequence[ChatMessage]) -> str:
        try:
            found = function(msgspec.to_builtins(messages))
        except Exception as error:
            found = error
        if not isinstance(found, str):
            raise ConfigurationError(f"[history] task: expected a text from {reference}, got {found!r}")
        return found

    return asked


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _output(episode: Episode) -> str | None:
    """The answer of the agent that was asked first; None: it gave none."""
    first = next(iter(episode.calls), None)
    bare = (call for call in reversed(episode.calls) if first and call.agent == first.agent and not call.tool_calls)
    return next((call.content for call in bare if call.content), None)


@contextlib.contextmanager
def rating(settings: RunSettings, run_dir: RunDir | None, metrics: Metrics) -> Iterator[HistoryJudge]:
    """By the sections [history] and [reward]; `run_dir` keeps grades. Raises ConfigurationError."""
    history = settings.history
    assert history is not None
    tasks, rewards = (Path(file) if file is not None else None for file in (history.tasks, history.rewards))
    with contextlib.ExitStack() as ends:
        has_grader = settings.reward is not None and settings.reward.grader is not None
        grader = ends.enter_context(grading(settings, RecordedTasks(), run_dir)) if has_grader else None
        asked = _input_by(history.task) if history.task is not None else None
        yield HistoryJudge(tasks, rewards, grader, metrics, asked)
