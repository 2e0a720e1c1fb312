"""What is looked for before anything of a run is started: what would end it is said in seconds.

In: checked settings and a folder. Out: the run's folder, prepared. Failure: ConfigurationError with the remedy;
UnavailableError where an engine that the settings name does not answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from tracegrad.producers.runner.config import AgentConfig
from tracegrad.producers.runner.preflight import check_functions
from tracegrad.producers.runner.sandbox import Sandbox
from tracegrad.producers.tasks.dataset import read_tasks
from tracegrad.schemas.records.tasks import Task

from .pipeline import ENGINE_PARTS, PipelinePart, prepare_run
from .run_dir import RunDir
from .settings import RunSettings
from .show import Show
from .wiring import Wiring, upstream


def tasks_of(settings: RunSettings) -> list[Task]:
    """Those to train on, then those held out. Raises ConfigurationError."""
    files = filter(None, (settings.tasks.file, settings.tasks.eval_file)) if settings.tasks is not None else ()
    return [task for file in files for task in read_tasks(file)]


def prepared(
    settings: RunSettings, run_dir: RunDir, show: Show, only: PipelinePart | None, tasks: list[Task] | None
) -> Wiring:
    """The run with all that its processes read, once nothing is found that would end it; `tasks`: where an agent runs.
    Raises ConfigurationError, UnavailableError."""
    if tasks is not None and settings.agent is not None:
        check_agent(settings.agent, show.say)
    if only in ENGINE_PARTS:
        for one in settings.upstream:
            upstream(one, os.environ)
        check_before_start(settings, run_dir, show.say)
    wiring = Wiring(prepare_run(settings, run_dir.path))
    _ = wiring.keys  # one that is missing is said before any process starts
    if tasks is not None and not wiring.run_dir.topic_starts:
        _check_functions(wiring, tasks, show)
    return wiring


def check_agent(agent: AgentConfig, say: Callable[[str], None]) -> None:
    """Makes the agent's sandbox for a trial, or says what it can do without one.

    Raises ConfigurationError with the remedy when there is to be one and there cannot.
    """
    if agent.sandbox == "bubblewrap":
        Sandbox(agent, ())
        return
    say(
        "agents run as this user: one that looks for them can read this run's key, its tasks' answers and its weights; "
        '[agent] sandbox = "bubblewrap" hides them (docs/security.md)'
    )


def _check_functions(wiring: Wiring, tasks: Sequence[Task], show: Show) -> None:
    """Of a run that has not begun: loads agent and grader for a trial. Raises ConfigurationError."""
    agent, reward = wiring.settings.agent, wiring.settings.reward
    known = [task for task in tasks if task.expected is not None]
    if agent is None or reward is None:
        return
    odd = asyncio.run(check_functions(agent, reward, wiring.runner(), known[0] if known else None))
    if (num_unknown := len(tasks) - len(known)) > 0:
        show.say(f"{num_unknown} of {len(tasks)} tasks have no `expected`, by which a grader judges")
    if odd:
        show.say(f"warning: {odd}")


def check_before_start(settings: RunSettings, run_dir: RunDir, say: Callable[[str], None]) -> None:
    """Refuses a model or an engine that cannot be trained with, before any broker or topic exists.

    Raises:
        ConfigurationError: with the remedy.
        UnavailableError: the engine that the settings name does not answer.
    """
    from ..engine.health import check_engine, wait_ready
    from ..engine.model_folder import check_model
    from ..engine.server import check_start, install_plugin

    urls, policy = settings.engine.urls, settings.policy
    if policy.model is None:
        return
    if not urls:
        check_start(settings.engine, policy)
        return
    # What those engines run on, and how long a context it takes, was its owner's choice.
    check_model(policy, is_cpu=False, max_model_len=1)
    plugin = install_plugin(str(run_dir.path)).parent
    for url in urls:
        wait_ready(url, say=say)
        check_engine(url, model=policy.model, served_name=policy.name, plugin=plugin, token=settings.engine.token)
