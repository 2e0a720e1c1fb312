"""Run something: `demo`, `train`, `up`, each a session in the foreground; `serve`, one process; `env`, for an agent."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from tracegrad.consumers.views.watch import Watcher
from tracegrad.producers.client.feedback import REWARD_TOKEN, REWARDS_URL
from tracegrad.producers.runner.agent_environment import agent_environment
from tracegrad.schemas.errors import ConfigurationError

from ..loopback import without_proxy
from ..printable_log import LOG_FORMAT, LogFormat
from ..run.before_start import prepared, tasks_of
from ..run.pipeline import PipelinePart
from ..run.run_dir import RunDir
from ..run.session import run_session, watch_arrivals
from ..run.settings import RunSettings
from ..run.show import Show, choose_show
from ..run.wiring import Wiring
from .common import (
    RUNS,
    JsonFlag,
    LogFormatOption,
    NewRunOption,
    RunOption,
    RunsDirOption,
    echo,
    find_run,
    help_of,
    load_settings,
    log_as,
)

CALCULATOR = Path(__file__).resolve().parents[2] / "examples" / "calculator" / "tracegrad.toml"
"""Two up is the checkout, or the installed package: the rooms and the examples lie side by side in both."""
FileArgument = Annotated[Path, typer.Argument(help="The TOML file, or a folder that has a tracegrad.toml.")]
Steps = Annotated[int | None, typer.Option(help=help_of("trainer.steps"))]
Seed = Annotated[int | None, typer.Option(help=help_of("seed"))]
NoAir = Annotated[bool, typer.Option("--no-air", help="Train without intermediate rewards (AIR).")]
Sync = Annotated[bool, typer.Option("--sync", help="Synchronous training: rollouts wait for the newest version.")]
NoPage = Annotated[bool, typer.Option("--no-page", help="Do not serve the page that shows the run in a browser.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Print a line for each step, with the lag of the streams (docs/running.md)."),
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the processes running after the report, until Ctrl-C.")]
Bootstrap = Annotated[str | None, typer.Option("--bootstrap-servers", help=help_of("kafka.bootstrap_servers"))]
Set = Annotated[list[str] | None, typer.Option("--set", help="Set any other key, such as --set trainer.lr=1e-5.")]
Tasks = Annotated[Path | None, typer.Option(help=help_of("tasks.file"))]
Model = Annotated[str | None, typer.Option("--model", help=help_of("policy.model"))]


def demo(
    steps: Steps = None,
    seed: Seed = None,
    no_air: NoAir = False,
    sync: Sync = False,
    keep: Keep = False,
    no_page: NoPage = False,
    bootstrap_servers: Bootstrap = None,
    verbose: Verbose = False,
    as_json: JsonFlag = False,
    run: NewRunOption = None,
    runs_dir: RunsDirOption = RUNS,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Train the small calculator agent, and report what it learnt.

    Exits with 1 when an id is not accounted for, or when engine and trainer disagree on the logprobs of tokens.

    Example: tracegrad demo --steps 10 --seed 1
    """
    from ..run.report import demo_report, tell_results

    flags = _flags(steps, seed, no_air, sync, bootstrap_servers, no_page)
    flags["run"] = run or f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    settings = load_settings(CALCULATOR, flags, for_training=True)
    shown = choose_show(as_json=as_json, is_verbose=verbose)
    said = {"report": demo_report, "last_words": tell_results}
    _run(settings, runs_dir, shown, log_format, for_training=True, keep=keep, **said)


def train(
    file: FileArgument,
    steps: Steps = None,
    seed: Seed = None,
    no_air: NoAir = False,
    sync: Sync = False,
    tasks: Tasks = None,
    eval_tasks: Annotated[Path | None, typer.Option(help=help_of("tasks.eval_file"))] = None,
    model: Model = None,
    set_: Set = None,
    keep: Keep = False,
    no_page: NoPage = False,
    bootstrap_servers: Bootstrap = None,
    verbose: Verbose = False,
    as_json: JsonFlag = False,
    run: NewRunOption = None,
    runs_dir: RunsDirOption = RUNS,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Train an agent until all steps are done: starts everything that this needs, the agent included.

    The same run name resumes where it stopped.

    Example: tracegrad train examples/math/tracegrad.toml --tasks tasks.jsonl --model models/small
    """
    from ..run.report import make_report, tell_results

    flags = _flags(steps, seed, no_air, sync, bootstrap_servers, no_page)
    flags |= {
        "run": run,
        "tasks.file": str(tasks) if tasks else None,
        "tasks.eval_file": str(eval_tasks) if eval_tasks else None,
        "policy.model": model,
    }
    flags |= set_flags(set_ or [])
    settings = load_settings(file, flags, for_training=True)
    shown = choose_show(as_json=as_json, is_verbose=verbose)
    said = {"report": make_report, "last_words": tell_results}
    _run(settings, runs_dir, shown, log_format, for_training=True, keep=keep, **said)


def check(
    file: FileArgument,
    tasks: Tasks = None,
    model: Model = None,
    set_: Set = None,
) -> None:
    """Look for what would end a run, before it is started: settings, tasks, model, chat template, ports. The agent and
    the grader are loaded once.

    Example: tracegrad check tracegrad.toml
    """
    from ..run.report import with_start_model

    flags = {"tasks.file": str(tasks) if tasks else None, "policy.model": model} | set_flags(set_ or [])
    trains_captured = load_settings(file, flags, for_training=False).select.train
    settings, show = load_settings(file, flags, for_training=not trains_captured), Show()
    known = tasks_of(settings)
    with tempfile.TemporaryDirectory(prefix="tracegrad-check-") as folder:
        run_dir = RunDir(Path(folder) / settings.run)
        policy = with_start_model(settings.policy, run_dir, show.say)
        prepared(msgspec.structs.replace(settings, policy=policy), run_dir, show, None, known)
    show.say(f"{len(known)} tasks; nothing was found that ends a run")


def up(
    file: Annotated[
        Path | None, typer.Argument(help="The TOML file; without it ./tracegrad.toml, or flags alone.")
    ] = None,
    only: Annotated[PipelinePart | None, typer.Option(help="Start only this part of the pipeline.")] = None,
    model: Model = None,
    set_: Set = None,
    no_page: NoPage = False,
    bootstrap_servers: Bootstrap = None,
    verbose: Verbose = False,
    as_json: JsonFlag = False,
    run: NewRunOption = None,
    runs_dir: RunsDirOption = RUNS,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Start everything but the agent, for an agent that you start yourself.

    Prints the variables that your agent needs, then what arrives from it.

    Example: tracegrad up --model models/small
    """
    from ..run.report import tell_results

    flags = _flags(None, None, False, False, bootstrap_servers, no_page) | {"run": run, "policy.model": model}
    flags |= set_flags(set_ or [])
    if file is None and not Path("tracegrad.toml").is_file():
        flags["run"] = run or "up"
    settings = _capturing(load_settings(file, flags, for_training=False))
    last_words = tell_results if settings.only_holds_out and only is None else None
    _run(
        settings,
        runs_dir,
        choose_show(as_json=as_json, is_verbose=verbose),
        log_format,
        for_training=False,
        only=only,
        watch=_watch_arrivals,
        last_words=last_words,
    )


def env(
    shell: Annotated[
        bool, typer.Option("--shell", help='Print export lines, for eval "$(tracegrad env --shell)".')
    ] = False,
    as_json: JsonFlag = False,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="For the program in which people rate answers; keep them from the agent.")
    ] = False,
    evaluator: Annotated[
        bool,
        typer.Option("--evaluator", help="For a program whose exporter sends evaluations; keep them from the agent."),
    ] = False,
    run: RunOption = None,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Print the environment variables for an agent that you start yourself.

    Example: eval "$(tracegrad env --shell)" && python my_agent.py
    """
    wiring = find_run(run, runs_dir)
    if feedback and evaluator:
        raise typer.BadParameter("expected --feedback or --evaluator, got both; ask twice, for two programs")
    chosen = feedback_variables if feedback else evaluator_variables if evaluator else variables
    found = chosen(wiring)
    if not wiring.run_dir.is_locked():
        name = wiring.record.name
        echo(
            f"tracegrad: run {name} is not running here; until it is, nothing answers at these addresses", is_error=True
        )
    if as_json:
        echo(json.dumps(found, indent=2))
    else:
        echo("\n".join(env_lines(found, is_shell=shell)))


def env_lines(found: Mapping[str, str], *, is_shell: bool) -> list[str]:
    """A line each: for a shell's `eval`, or as `docker run --env-file` takes it."""
    return [f"export {name}={shlex.quote(value)}" if is_shell else f"{name}={value}" for name, value in found.items()]


def serve(
    name: Annotated[
        str, typer.Argument(help="One of otlp, llm, rewards, streams, tasks, runner, engine, trainer, weight-sync.")
    ],
    run_dir: Annotated[Path, typer.Option("--run-dir", help="The run's folder, made by `up` or `train`.")],
    stage: Annotated[str | None, typer.Option(help="For streams: normalize, assemble or credit.")] = None,
    ordinal: Annotated[
        int, typer.Option(min=0, help="Number of the process, from 0, where there are several of its kind.")
    ] = 0,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Run a single process of a run in the foreground.

    Example: tracegrad serve streams --stage assemble --ordinal 1 --run-dir runs/mine
    """
    from ..run.serve import serve as serve_process

    os.environ[LOG_FORMAT] = log_format
    raise typer.Exit(serve_process(name, run_dir, stage=stage, ordinal=ordinal))


def variables(wiring: Wiring) -> dict[str, str]:
    """What an agent that we do not start is given."""
    agent = wiring.settings.agent
    service = agent.service if agent else "agent"
    return agent_environment(wiring.runner(), service, own=os.environ) | without_proxy(os.environ)


def feedback_variables(wiring: Wiring) -> dict[str, str]:
    """What the program is given in which people rate. Raises ConfigurationError without a rewards gateway."""
    wiring.feedback()
    return {REWARDS_URL: wiring.endpoints.feedback_url, REWARD_TOKEN: wiring.feedback_token}


def evaluator_variables(wiring: Wiring) -> dict[str, str]:
    """What a program is given whose OpenTelemetry exporter says how good answers were; whatever it exports is a
    judge's, so that no agent is given it. Raises ConfigurationError without a [feedback]."""
    wiring.feedback()
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": wiring.endpoints.otlp_endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        # The variable's value is percent-encoded.
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{wiring.feedback_token}",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_LOGS_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "none",
    }


def _watch_arrivals(wiring: Wiring, show: Show) -> Watcher:
    """Tells how to point an agent at this run, then what comes of it."""
    found = variables(wiring)
    settings = wiring.settings
    names = [*settings.policy.names, *(name for one in settings.upstream for name in one.models)]
    asked = f"a model of these: {', '.join(names)}" if names else "no model: there is no [policy] model or [[upstream]]"
    lines = [
        'give your agent these variables (or: eval "$(tracegrad env --shell)"):',
        *(f"  {name}={value}" for name, value in found.items()),
        f"  and {asked}; run it under `opentelemetry-instrument`",
        *(
            [
                "feedback on its answers goes to a gateway of its own: "
                "`tracegrad env --feedback` says where, and with what token"
            ]
            if settings.feedback is not None
            else []
        ),
        "waiting for its first span",
    ]
    show.result("env", {"variables": found, "models": names}, lines)
    return watch_arrivals(wiring, show)


def _run(settings: RunSettings, runs_dir: Path, show: Show, log_format: LogFormat, **options: Any) -> NoReturn:
    log_as(log_format, settings.run)
    raise typer.Exit(run_session(settings, runs_dir / settings.run, show, **options))


def _capturing(settings: RunSettings) -> RunSettings:
    """With every episode selected, unless the settings say themselves what is."""
    select = settings.select
    if select.capture_all is not None or select.runs or select.services or select.agents:
        return settings
    return msgspec.structs.replace(settings, select=msgspec.structs.replace(select, capture_all=True))


def _flags(
    steps: int | None, seed: int | None, no_air: bool, sync: bool, bootstrap_servers: str | None, no_page: bool
) -> dict[str, Any]:
    return {
        "trainer.steps": steps,
        "seed": seed,
        "air.enabled": False if no_air else None,
        "pace.staleness": 0 if sync else None,
        "kafka.bootstrap_servers": bootstrap_servers,
        "page.enabled": False if no_page else None,
    }


def set_flags(given: list[str]) -> dict[str, Any]:
    """What `--set` says, by key. Raises ConfigurationError."""
    flags: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"--set {text}: expected section.key=value")
        flags[name.strip()] = value.strip()
    return flags
