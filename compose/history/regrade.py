"""A grader of now on what agents returned then: the source's recorded outputs, as a replay folds them.

    `rollouts`: task  -+
    episode: output,   +--> grade(task, output, attempt) --> rewards, in the place of the earlier grader's
    attempt            -+

In: the source, the new run's settings, whose [reward] names the grader. Out: episodes as it judges them, and what it
did. Invariants: it is the runner's own grader process, with equal arguments, environment and time limit; a grade is on
the disk before anything is made of it, in the new run's `grades.jsonl`, and an episode is asked about once: a regrade
that was broken off goes on with equal records whatever a grader, which may be a model, would say a second time. One
that cannot be graded, or of which the grader says nothing, is unscored with the reason, as in a live run, and its group
does without it. Failure: ConfigurationError before anything is written where the grader cannot be imported, and behind
the history where it graded nothing at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from tracegrad.producers.runner.children import Launcher
from tracegrad.producers.runner.config import AgentConfig, RewardConfig, RunnerHandles
from tracegrad.producers.runner.grading import Grader
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.follow import decoded, read_to_end
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.facts import CallFact
from tracegrad.schemas.records.rollouts import AGENT_REWARD, ROLLOUTS, Reward, RolloutRequest
from tracegrad.schemas.topics import Topic
from tracegrad.streams.regrade import given_to_grader, graded_anew, is_judged, why_ungradable

from ..run.run_dir import RunDir
from ..run.settings import RunSettings
from ..run.show import Show
from ..run.wiring import Wiring

_GRADES = "grades.jsonl"
_WITHOUT = "without: "
_MAX_REASONS = 20


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """Of one episode. Example: Grade(episode_id="1f2e...9a3c", rewards=(Reward(name="reward", value=1.0, ...),))."""

    episode_id: str
    rewards: tuple[Reward, ...]
    """Of calls, then of the whole. One without a value says why the grader gave none."""


class Grades:
    """`grades.jsonl`, one line an episode: memory holds where each begins. A last line that was cut off is cut off here
    too, one that is none of ours is refused. Close it."""

    def __init__(self, path: Path) -> None:
        """Opens it, or makes it. Raises ConfigurationError, OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        self._places: dict[str, int] = {}
        """Episode -> where its line begins."""
        self._file.seek(0)
        end = 0
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                try:
                    self._places[msgspec.json.decode(line, type=Grade).episode_id] = end
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise ConfigurationError(
                        f"{path}: expected a grade a line, got none at byte {end} ({error}); regrade into another run"
                    ) from error
                end += len(line)
        os.truncate(self._file.fileno(), end)
        self._end = end

    def grade_of(self, episode_id: str) -> Grade | None:
        """What was said of it; None: it was not asked about."""
        place = self._places.get(episode_id)
        if place is None:
            return None
        self._file.seek(place)
        return msgspec.json.decode(self._file.readline(), type=Grade)

    def append(self, grade: Grade) -> None:
        """Keeps it. Raises OSError."""
        line = msgspec.json.encode(grade) + b"\n"
        left = memoryview(line)
        while left:
            left = left[os.write(self._file.fileno(), left) :]
        self._places[grade.episode_id] = self._end
        self._end += len(line)

    def close(self) -> None:
        """It stays."""
        self._file.close()


class _Task(msgspec.Struct, frozen=True, array_like=True):
    id: str
    input: Any
    expected: Any


class RecordedTasks:
    """By rollout, as `rollouts` tells; memory holds each task once. What cannot be read is left out: its episodes have
    no task."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, bytes] = {}
        self._of: dict[str, bytes] = {}

    def read(self, log: Log, topic: str) -> RecordedTasks:
        """All that there are now; of several requests of a rollout the first. Blocks. Raises UnavailableError."""
        for _, asked in decoded(read_to_end(log, topic), {topic: ROLLOUTS}):
            task = msgspec.json.encode(_Task(asked.task_id, asked.input, asked.expected))
            self._of.setdefault(asked.rollout_id, self._tasks.setdefault(task, task))
        return self

    def request(self, episode: Episode) -> RolloutRequest | None:
        """What its rollout was asked for; None where no record tells."""
        found = self._of.get(episode.rollout_id or "")
        if found is None or episode.rollout_id is None or episode.group is None:
            return None
        task = msgspec.json.decode(found, type=_Task)
        return RolloutRequest(
            rollout_id=episode.rollout_id,
            group=episode.group,
            task_id=task.id,
            input=task.input,
            expected=task.expected,
            policy=episode.policy or "",
            purpose=episode.purpose,
        )


class Regrader:
    """Judges one episode after another; a context manager from one thread.

    Args:
        reward: its `grader` is asked.
        agent: of whose Python and folder the grader's process is.
        log_dir: where its stderr goes.
        tasks: by rollout id.
        replaced: sources of the rewards that the grader's replace.
        grades: what it said before; None: it is asked again.
    """

    def __init__(
        self,
        reward: RewardConfig,
        agent: AgentConfig,
        log_dir: Path,
        tasks: RecordedTasks,
        *,
        replaced: Sequence[str],
        grades: Grades | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        """Episodes whose reward `changed`, those whose grade was `known`, and by their reason those `without` one."""
        self._before, self._after = list[float](), list[float]()
        self._reward, self._tasks, self._grades = reward, tasks, grades
        self.replaced = tuple({*replaced, reward.source})
        self._awaited = (AGENT_REWARD,) if reward.trust_agent else ()
        handles = RunnerHandles(run_hash=RunHash("0" * 8), llm_url="", otlp_endpoint="", key=b"", log_dir=str(log_dir))
        # Graders run outside of the agents' sandbox.
        self._launcher = Launcher(msgspec.structs.replace(agent, sandbox="off"), handles)
        self._grader = Grader(reward, self._launcher)
        self._loop = asyncio.Runner()

    def __enter__(self) -> Regrader:
        """Raises ConfigurationError: the grader cannot be imported."""
        try:
            self._loop.run(self._grader.begin())
        except BaseException:  # Ctrl-C too, in the user's imports: `__exit__` is called behind the block alone
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._grader.close())
        self._loop.close()
        self._launcher.close()

    def __call__(self, episode: Episode, facts: Sequence[CallFact]) -> Episode:
        """The episode as it is judged; one that no grader judges as it is."""
        if not is_judged(episode):
            return episode
        given, why = self.given(episode, [fact.call for fact in facts], self._tasks.request(episode))
        graded = graded_anew(episode, given, replaced=self.replaced, awaited=self._awaited, why=why)
        self._count(episode, graded)
        return graded

    def given(
        self, episode: Episode, records: Sequence[CallRecord], request: RolloutRequest | None
    ) -> tuple[Sequence[Reward], str]:
        """(what the grader gives, why it could not be asked). `request`: what it was asked for; None: nobody knows."""
        known = self._grades.grade_of(episode.episode_id) if self._grades is not None else None
        if known is not None:
            self.counts["known"] += 1
            return known.rewards, ""
        if why := why_ungradable(episode):
            return (), why
        if request is None:
            return (), "task_not_recorded"
        request = msgspec.structs.replace(request, rewards_awaited=self._reward.awaited)
        output, attempt = given_to_grader(episode, records)
        given = self._loop.run(self._grader.grade(request, episode.attempt_id or "", output, attempt))
        if self._grades is not None:
            self._grades.append(Grade(episode_id=episode.episode_id, rewards=given))
        return given, ""

    def _count(self, before: Episode, after: Episode) -> None:
        if after.reward is not None:
            self._after.append(after.reward)
            if before.reward is not None:
                self._before.append(before.reward)  # of those that have both, or the means are of different episodes
            self.counts["changed"] += before.reward != after.reward
            return
        told = f"{_WITHOUT}{after.unscored.partition(': ')[0]}"
        self.counts[told if told in self.counts or len(self.counts) < _MAX_REASONS else f"{_WITHOUT}other"] += 1

    def show_result(self, show: Show) -> None:
        """What became of it. Raises ConfigurationError where it graded nothing."""
        without = {
            name.removeprefix(_WITHOUT): num for name, num in sorted(self.counts.items()) if name.startswith(_WITHOUT)
        }
        reasons = ", ".join(f"{num} {why}" for why, num in without.items())
        if not self._after:
            raise ConfigurationError(
                f"--grader: expected attempts that it gives a reward, got none ({reasons or 'no attempt ended'})"
            )
        before, after = fmean(self._before or [0.0]), fmean(self._after)
        fields = {
            "graded": len(self._after),
            "changed": self.counts["changed"],
            "known": self.counts["known"],
            "mean_before": before,
            "mean_after": after,
            "without_reward": without,
        }
        lines = [
            f"graded anew: {len(self._after)} episodes, {self.counts['changed']} of them have another reward than "
            f"before; mean {before:.3f} -> {after:.3f}"
        ]
        show.result("regrade", fields, [*lines, *([f"without a reward: {reasons}"] if reasons else [])])


def check_grader(settings: RunSettings) -> None:
    """Starts the grader once. Raises ConfigurationError where it cannot be imported, or no runner ran anything."""
    reward, agent = _sections(settings)
    try:
        with tempfile.TemporaryDirectory() as logs, Regrader(reward, agent, Path(logs), RecordedTasks(), replaced=()):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"--grader: cannot start its process, by the [agent] section's Python and in its folder: {error}; where "
            "they have moved, name them by --set agent.python=.. and --set agent.cwd=.."
        ) from error


def _sections(settings: RunSettings) -> tuple[RewardConfig, AgentConfig]:
    if settings.history is not None and settings.reward is not None:
        # Of whose Python and folder the grader is: nobody's agent is started.
        return settings.reward, settings.agent or AgentConfig(command=sys.executable)
    if settings.agent is None or settings.reward is None:
        raise ConfigurationError(
            "--grader: expected a run with an [agent], whose runner recorded what it returned, got one without: what "
            "others' agents did is rated by feedback"
        )
    return settings.reward, settings.agent


@contextlib.contextmanager
def regrading(source: Wiring, settings: RunSettings, run_dir: RunDir | None) -> Iterator[Regrader]:
    """What judges the source's episodes; `run_dir` keeps its grades, None: nothing does. Raises ConfigurationError."""
    was = source.settings.reward
    tasks = RecordedTasks().read(source.log(is_history=True), source.topics.name(Topic.ROLLOUTS))
    with grading(settings, tasks, run_dir, replaced=(was.source,) if was is not None else ()) as regrader:
        yield regrader


@contextlib.contextmanager
def grading(
    settings: RunSettings, tasks: RecordedTasks, run_dir: RunDir | None, *, replaced: Sequence[str] = ()
) -> Iterator[Regrader]:
    """The grader of a run, as `Regrader` takes it."""
    reward, agent = _sections(settings)
    with contextlib.ExitStack() as ends:
        logs, grades = run_dir.logs if run_dir is not None else None, None
        if run_dir is not None:
            grades = Grades(run_dir.path / _GRADES)
            ends.callback(grades.close)
        folder = logs or Path(ends.enter_context(tempfile.TemporaryDirectory()))
        yield ends.enter_context(Regrader(reward, agent, folder, tasks, replaced=replaced, grades=grades))
