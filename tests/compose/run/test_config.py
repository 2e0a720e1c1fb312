"""The one file: unknown keys, precedence, paths, and checks that fail at load."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.compose.run.config_files import GOOD, write
from tests.compose.run.config_files import folder as folder
from tracegrad.compose.cli.run import variables
from tracegrad.compose.run.load import load
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.runner.agent_environment import host_environment
from tracegrad.producers.runner.config import AgentConfig
from tracegrad.producers.runner.hosted.agent_host import FLUSH_LIMIT_S
from tracegrad.schemas.credentials import new_host
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.streams.config import ServiceConfig

ROOT = Path(__file__).parents[3]


def test_paths_are_relative_to_the_file(folder: Path) -> None:
    """Wherever the command is run."""
    settings = load(write(folder, GOOD), environ={}, flags={}, for_training=True)
    assert settings.tasks is not None and settings.tasks.file == str(folder / "tasks.jsonl")
    assert settings.agent is not None and settings.agent.callable == f"{folder / 'agent.py'}:solve"
    assert settings.agent.cwd == str(folder)
    assert settings.policy.model == str(folder / "policy")


def test_flags_win_over_the_environment_and_that_over_the_file(folder: Path) -> None:
    """Precedence: file < environment < flags."""
    path = write(folder, GOOD + "[trainer]\nsteps = 1\nlr = 0.5\nwarmup_steps = 7\n")
    environ = {"TRACEGRAD_TRAINER_STEPS": "2", "TRACEGRAD_TRAINER_LR": "1e-3", "TRACEGRAD_SEED": "4"}
    settings = load(path, environ=environ, flags={"trainer.steps": 3, "run": None})
    assert (settings.trainer.steps, settings.trainer.lr, settings.trainer.warmup_steps) == (3, 1e-3, 7)
    assert settings.seed == 4


@pytest.mark.parametrize(
    "text", ['[{"name": "a", "status": "failed", "value": 1}]', '[{name="a", status="failed", value=1}]']
)
def test_a_list_of_tables_is_set_as_json_or_as_the_file_spells_it(folder: Path, text: str) -> None:
    """What stands in the file may be copied behind --set."""
    settings = load(write(folder, GOOD), environ={}, flags={"air.rules": text})
    assert [(rule.name, rule.value) for rule in settings.air.rules] == [("a", 1.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3", "flag for air.rules: expected list of table, got '3'"),
        ("[{name", "flag for air.rules: expected JSON, or a value of TOML"),
    ],
)
def test_what_is_no_list_of_tables_is_refused_by_its_flag(folder: Path, text: str, message: str) -> None:
    """Not by a traceback."""
    with pytest.raises(ConfigurationError, match=message):
        load(write(folder, GOOD), environ={}, flags={"air.rules": text})


def test_each_path_of_a_list_is_relative_to_the_file(folder: Path) -> None:
    """As a single one is."""
    settings = load(write(folder, GOOD + '[select]\nruns = ["runs/a", "/b.json"]\n'), environ={}, flags={})
    assert settings.select.runs == (str(folder / "runs" / "a"), "/b.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trainr]\nsteps = 1\n", "unknown section 'trainr'; did you mean 'trainer'?"),
        ("[trainer]\nstep = 1\n", r"unknown key 'step' in \[trainer\]; did you mean 'steps'?"),
        ('[[air.rules]]\nname = "a"\nstatus = "failed"\nvalue = 1\ncapp = 2\n', "did you mean 'cap'?"),
        ("[trainer]\nsteps = 0\n", "steps: expected at least 1, got 0"),
        ('[trainer]\nsteps = "many"\n', r"\[trainer\] steps: expected whole number, got 'many'"),
        ('[[air.rules]]\nname = "a"\nstatus = "suceeded"\nvalue = 1\n', "did you mean 'succeeded'?"),
        ("[streams]\nworkers = 9\n", r"only \[kafka\] partitions = 4 can work at once"),
        ('[engine]\nurl = "localhost:1"\n', "expected http://host:port"),
        ("[pace]\nstaleness = -1\n", r"\[pace\] staleness: expected at least 0, got -1"),
        ("[trainer]\nlr = nan\n", r"\[trainer\] lr: expected a finite number, got nan"),
        ("[trainer]\nlr = -1e-5\n", r"\[trainer\] lr: expected at least 0, got -1e-05"),
        ("[algorithm]\nlow = 2.0\n", r"\[algorithm\] low: expected at most 1 with surrogate 'clip', got 2"),
        ('[algorithm]\nrecipe = "rlo_clip"\n', r"\[algorithm\] recipe: no recipe 'rlo_clip'; did you mean 'rloo_clip'"),
        ("[trainer]\nkeep_versions = -3\n", r"\[trainer\] keep_versions: expected at least 0, got -3"),
        ("[trainer]\nthreads = 0\n", r"\[trainer\] threads: expected at least 1, got 0"),
        ('[trainer]\ndtype = "fp8"\n', r"\[trainer\] dtype: expected `auto` or `float32` or `bfloat16`, got 'fp8'"),
        (
            '[[air.rules]]\nname = "a"\nstatus = "failed"\nvalue = inf\n',
            r"\[air.rules.a\] value: .*finite number, got inf",
        ),
        (
            '[[air.rules]]\nname = "a"\nstatus = "failed"\nvalue = 1\ncap = -1\n',
            r"\[air.rules.a\] cap: expected at least 0, got -1",
        ),
        ("[streams]\ndeadline_s = 0\n", r"\[streams\] deadline_s: expected more than 0, got 0"),
        ('[streams.services."my bot"]\nidle = 9\n', r"unknown key 'idle' in \[streams.services.my bot\]; .*'idle_s'"),
        ("[streams.services]\nbot = 9\n", r"\[streams.services\] bot: expected a table, got 9"),
        ('[engine]\ndtype = "bfloat16"\n', r"\[engine\] dtype is 'bfloat16', but versions are published as 'auto'"),
        ('[trainer]\npublish_dtype = "bfloat16"\n', r"dtype is 'auto', but versions are published as 'bfloat16'"),
        ('[engine]\ndtype = "fp8"\n', r"\[engine\] dtype: expected `float32` or `bfloat16`, got 'fp8'"),
        ('[engine]\ndevice = "tpu"\n', r"\[engine\] device: expected `auto`, `cpu`, `cuda` or `cuda:N`.*, got 'tpu'"),
        ('[trainer]\ndevice = "cuda:x"\n', r"\[trainer\] device: expected `auto`.*, got 'cuda:x'"),
        ("[engine]\ngpu_memory_utilization = 1.5\n", r"\[engine\] gpu_memory_utilization: expected at most 1, got 1.5"),
        ("[kafka]\nreplication = 0\n", r"\[kafka\] replication: expected at least 1, got 0"),
        ('[kafka]\ntopic_prefix = "a b"\n', r"\[kafka\] topic_prefix: expected letters.*got 'a b'"),
        ('[kafka]\nbootstrap_servers = ""\n', r"\[kafka\] bootstrap_servers: expected host:port, got nothing"),
        ('[kafka]\nstart = "earliest"\n', r'\[kafka\] start: expected "beginning" or a time'),
        ('[kafka.client]\nfoo = "1"\n', r"\[kafka\] client: foo is not allowed; expected one of"),
        ('[kafka.topics]\nepisodes = "mine"\n', r"\[kafka.topics\] episodes: only .* can be renamed"),
        ("[select]\ntrain = true\n", r"\[select\] train: a run trains on \[tasks\] file or on captured traffic"),
        ("[feedback.names.x]\nlow = 1.0\nhigh = 0.5\n", r"\[feedback.names.x\] expected low < high"),
        (
            '[select]\nunscored = "air"\n',
            r"\[select\] unscored, sampling: expected a run that trains on captured.*, got .*; set \[select\] train",
        ),
        ('[select]\nsampling = "asked"\n', r"\[select\] unscored, sampling: expected a run"),
        (
            "[alarms]\nrollback_window = 500\n",
            r"\[alarms\] rollback_window: expected a run that trains on captured traffic.*, got .*; leave",
        ),
        ("[select]\nruns = [7]\n", r"\[select\] runs: expected list of text, got \[7\]"),
        ('[llm]\nhost = "0.0.0.0"\n', r"\[llm\] host: expected 127.0.0.1.*got '0.0.0.0'; set a token"),
        ('[otlp]\nhost = "example.org"\n', r"\[otlp\] host: expected 127.0.0.1.*got 'example.org'"),
        (
            '[algorithm]\nrecipe = "gigpo"\n',
            r"\[algorithm\] recipe = 'gigpo': expected \[credit\] strategy = 'anchor', got 'return_to_go'; set",
        ),
        ('[credit]\nstrategy = "turn"\n', r"\[credit\] strategy = 'turn': .* set \[algorithm\] final = 1"),
        (
            '[credit]\nstrategy = "anchor"\n[algorithm]\nover = "batch"\n',
            r"'anchor': .*'leave_one_out' over 'batch'; set",
        ),
        ('[credit]\nstrategy = "agent"\n[algorithm]\nrecipe = "ppo"\n', r"baseline = 'critic': .*'return_to_go'"),
        ('[credit]\ngamma = 0.9\n[algorithm]\nrecipe = "turn_ppo"\n', r"baseline = 'critic': .* and gamma = 1"),
        (
            '[credit]\nstrategy = "broadcast"\n[[air.rules]]\nname = "a"\nstatus = "failed"\nvalue = 1\n',
            r"\[credit\] strategy = 'broadcast': .*; set \[air\] enabled = false",
        ),
        ('[credit]\npeers = "turns"\n', r"\[credit\] peers: expected .*, got 'turns'; did you mean 'turn'"),
        ('[credit]\nstrategy = "mine.py:f"\n', r"\[credit\] strategy: no such file: .*mine.py"),
        (
            "[algorithm]\nfinal = 1\nbaseline = 'running_mean'\n",
            r"\[algorithm\] final: expected a baseline of the group",
        ),
        ('[air]\nfunction = "mine.py:pay"\n', r"\[air\] function: no such file: .*mine.py"),
        ("[llm]\nport = 99999\n", r"\[llm\] port: expected at most 65535, got 99999"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key_and_remedy(folder: Path, text: str, message: str) -> None:
    """At load, not an hour later."""
    with pytest.raises(ConfigurationError, match=message):
        load(write(folder, GOOD + text), environ={}, flags={})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('run = "mine"', 'run = "My Run"', "rename the run"),
        ('file = "tasks.jsonl"', "", r"\[tasks\] file is missing; add it, or pass --tasks FILE"),
        ('file = "tasks.jsonl"', 'file = "none.jsonl"', r"\[tasks\] file: no such file: .*; pass --tasks FILE"),
        ('model = "policy"', "", "pass --model DIR"),
        ('model = "policy"', 'model = "nowhere"', "no config.json in"),
        ('callable = "agent.py:solve"', "", "needs either callable"),
        ('callable = "agent.py:solve"', 'callable = "agent.py"', 'expected "file.py:function"'),
        ('grader = "grade.py:grade"', 'grader = "other.py:grade"', "no such file"),
        ('grader = "grade.py:grade"', 'grader = "grade.py:grad"', r"no 'grad' in .*grade\.py; it has: .*grade"),
        ("[tasks]", "time_limit_s = -1\n[tasks]", r"\[agent\] time_limit_s: expected more than 0, got -1"),
        ("[tasks]", "flush_timeout_s = 20\n[tasks]", r"flush_timeout_s: expected less than 20, got 20"),
        ("[tasks]", "flush_timeout_s = 0.5\n[tasks]", r"\[agent\] flush_timeout_s: expected at least 1, got 0.5"),
        ("[policy]", "time_limit_s = nan\n[policy]", r"\[reward\] time_limit_s: expected a finite number, got nan"),
        ("[reward]", "max_attempts = 0\n[reward]", r"\[tasks\] max_attempts: expected at least 1, got 0"),
        ('[reward]\ngrader = "grade.py:grade"', "", r"needs a section \[reward\]"),
    ],
)
def test_a_broken_file_is_refused(folder: Path, old: str, new: str, message: str) -> None:
    """One clear message each."""
    assert old in GOOD
    with pytest.raises(ConfigurationError, match=message):
        load(write(folder, GOOD.replace(old, new)), environ={}, flags={}, for_training=True)


def test_an_agent_host_flushes_for_longer_than_the_settings_allow() -> None:
    """The host runs under the user's Python and spells the bound itself."""
    with pytest.raises(ConfigurationError, match=f"less than {FLUSH_LIMIT_S:g}"):
        AgentConfig(callable="agent.py:solve", flush_timeout_s=FLUSH_LIMIT_S)


def test_a_misspelt_variable_of_a_section_is_refused(folder: Path) -> None:
    """A setting that silently does nothing costs a night."""
    path = write(folder, GOOD)
    with pytest.raises(ConfigurationError, match=r"TRACEGRAD_KAFKA_BOOTSTRAP.*did you mean 'bootstrap_servers'"):
        load(path, environ={"TRACEGRAD_KAFKA_BOOTSTRAP": "x:1"}, flags={})
    with pytest.raises(ConfigurationError, match="TRACEGRAD_TRAINER_STEPS: expected whole number, got 'soon'"):
        load(path, environ={"TRACEGRAD_TRAINER_STEPS": "soon"}, flags={})


@pytest.mark.parametrize("text", ["run = ", "run = 'a'\nrun = 'b'", "\xff"], ids=["cut", "twice", "bytes"])
def test_what_is_not_toml_is_refused(folder: Path, text: str) -> None:
    """Whatever the file holds."""
    path = folder / "tracegrad.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match="not TOML"):
        load(path, environ={}, flags={})


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(ConfigurationError, match="no such file"):
        load(tmp_path / "none.toml", environ={}, flags={})


def test_a_hub_name_stays_a_hub_name(folder: Path) -> None:
    """Unless such a folder exists."""
    path = write(folder, GOOD.replace('"policy"', '"org/small-model"'))
    assert load(path, environ={}, flags={}).policy.model == "org/small-model"


def test_resolved_settings_come_back_equal(folder: Path) -> None:
    """What `tracegrad serve` reads is what was checked."""
    settings = load(write(folder, GOOD + '[streams.services."my bot"]\nidle_s = 60\n'), environ={}, flags={})
    assert settings.streams.services == {"my bot": ServiceConfig(idle_s=60.0)}
    assert prepare_run(settings, folder / "run").settings == settings
    with pytest.raises(ConfigurationError, match="name its folder"):
        _ = RunDir(folder / "none").settings


@pytest.mark.parametrize(("flush_timeout_s", "ack_timeout_s"), [(5.0, 4.0), (10.0, 8.0), (19.0, 8.0)])
def test_the_otlp_gateway_answers_before_an_agent_gives_up(
    folder: Path, flush_timeout_s: float, ack_timeout_s: float
) -> None:
    """Whichever gives up first: the run's own agent, or one that keeps its SDK's default of 10 s."""
    text = GOOD.replace("[tasks]", f"flush_timeout_s = {flush_timeout_s}\n[tasks]")
    wiring = Wiring(prepare_run(load(write(folder, text), environ={}, flags={}), folder / "run"))
    assert wiring.otlp().ack_timeout_s == ack_timeout_s


def test_what_env_prints_is_what_the_runner_gives(folder: Path) -> None:
    """But for the export time-out, which is for hosts, the credential, which is for whom a runner starts, and log
    events, for which no attempt's end waits."""
    text = GOOD + '[llm]\ntoken = "a"\n[otlp]\ntoken = "b c"\n'
    wiring = Wiring(prepare_run(load(write(folder, text), environ={}, flags={}), folder / "run"))
    agent = wiring.settings.agent
    assert agent is not None
    given = host_environment(agent, wiring.runner(), {}, holder=new_host())
    shown = {name: given[name] for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OTEL_EXPORTER_OTLP_HEADERS")}
    assert given == variables(wiring) | {"OTEL_EXPORTER_OTLP_TIMEOUT": "10", "OTEL_LOGS_EXPORTER": "none"} | shown


def test_a_token_lets_a_gateway_listen_elsewhere(folder: Path) -> None:
    """As its message says."""
    text = GOOD + '[llm]\nhost = "0.0.0.0"\ntoken = "secret"\n[otlp]\nhost = "::1"\n'
    assert load(write(folder, text), environ={}, flags={}).llm.host == "0.0.0.0"


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*/tracegrad.toml")), ids=lambda path: path.parent.name)
def test_every_file_of_the_repository_loads(path: Path, folder: Path) -> None:
    """With `--model`, and `--tasks` where it trains some and not its traffic; an agent's own environment is there."""
    flags = {"policy.model": str(folder / "policy")}
    trains_tasks = "[select]" not in path.read_text()
    if trains_tasks:
        flags |= {"tasks.file": str(folder / "tasks.jsonl"), "agent.python": sys.executable}
    settings = load(path, environ={}, flags=flags, for_training=trains_tasks)
    assert settings.select.train != trains_tasks


@pytest.mark.parametrize(
    "text",
    [
        '[credit]\nstrategy = "anchor"\ngamma = 0.95\n[algorithm]\nrecipe = "gigpo"\n',
        '[credit]\nstrategy = "turn"\n[algorithm]\nrecipe = "mt_grpo"\n',
        '[credit]\nstrategy = "agent"\n[algorithm]\nbaseline = "running_mean"\ndecay = 0.95\n',
        '[credit]\nstrategy = "broadcast"\npeers = "rollout"\n',
        '[credit]\nstrategy = "broadcast"\n[air]\nenabled = false\n[[air.rules]]\nname = "a"\nstatus = "failed"\n'
        "value = 1\n",
        '[credit]\npeers = "turn"\ngamma = 0.5\n',
    ],
)
def test_strategies_go_with_what_the_trainer_makes_of_them(folder: Path, text: str) -> None:
    """The published combinations among them."""
    load(write(folder, GOOD + text), environ={}, flags={})
