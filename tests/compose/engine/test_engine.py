"""How the engine is started, what is refused beforehand, and what a failed start says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tiny_models import CHAT_TEMPLATE
from tracegrad.compose.engine.config import EngineConfig, EngineHandles
from tracegrad.compose.engine.failed_start import FailedStart, explain, read_failed_start
from tracegrad.compose.engine.model_folder import check_model, read_chat_template
from tracegrad.compose.engine.server import engine_argv, engine_environment, install_plugin
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.consumers.engine import vllm_plugin
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.trainer.config import TrainerConfig


def config_for(folder: Path, **fields: Any) -> tuple[EngineConfig, EngineHandles]:
    """`[engine]` and handles under a folder."""
    handles = EngineHandles(policy=PolicyConfig(model=str(folder)), work_dir=str(folder), port=1234, token="secret")
    return EngineConfig(**fields), handles


def option(argv: list[str], name: str) -> str:
    """The value after an option."""
    return argv[argv.index(name) + 1]


def test_command_line_runs_the_plugin_script_with_what_training_needs(tmp_path: Path) -> None:
    """Processed logprobs, no generation defaults, our loader and guard, loopback; its token is shown to no user."""
    argv = engine_argv(*config_for(tmp_path, args=("--seed", "3")), is_cpu=True)
    assert argv[0] == sys.executable
    assert Path(argv[1]).name == "tracegrad_vllm_plugin.py"
    assert option(argv, "--logprobs-mode") == "processed_logprobs"
    assert option(argv, "--generation-config") == "vllm"
    module, _, name = option(argv, "--worker-extension-cls").partition(".")
    assert (f"{module}.py", hasattr(vllm_plugin, name)) == (Path(argv[1]).name, True)
    module, _, name = option(argv, "--middleware").partition(".")
    assert (f"{module}.py", hasattr(vllm_plugin, name)) == (Path(argv[1]).name, True)
    assert "secret" not in " ".join(argv)
    assert option(argv, "--host") == "127.0.0.1"
    assert option(argv, "--dtype") == "float32"
    assert option(argv, "--distributed-executor-backend") == "uni"
    assert {"--enable-scale-out", "--enforce-eager", "--enable-auto-tool-choice"} <= set(argv)
    assert argv[-2:] == ["--seed", "3"]


def test_files_of_ones_own_are_named_to_vllm(tmp_path: Path) -> None:
    """What registers a tool parser, with its name; and a chat template: without one the model's own counts."""
    config, handles = config_for(tmp_path, tool_call_parser="own", tool_parser_plugin="parser.py")
    argv = engine_argv(
        config,
        msgspec.structs.replace(handles, policy=PolicyConfig(model=str(tmp_path), chat_template="own.jinja")),
        is_cpu=True,
    )
    assert option(argv, "--tool-parser-plugin") == "parser.py"
    assert option(argv, "--tool-call-parser") == "own"
    assert option(argv, "--chat-template") == "own.jinja"
    assert "--chat-template" not in engine_argv(config, handles, is_cpu=True)


def test_a_shipped_parser_is_named_by_its_file(tmp_path: Path) -> None:
    """`json_block` is ours; a plug-in of that name that somebody else wrote counts above it."""
    argv = engine_argv(*config_for(tmp_path, tool_call_parser="json_block"), is_cpu=True)
    assert option(argv, "--tool-call-parser") == "json_block"
    assert 'register_module("json_block"' in Path(option(argv, "--tool-parser-plugin")).read_text()
    own = config_for(tmp_path, tool_call_parser="json_block", tool_parser_plugin="own.py")
    assert option(engine_argv(*own, is_cpu=True), "--tool-parser-plugin") == "own.py"
    assert "--tool-parser-plugin" not in engine_argv(*config_for(tmp_path), is_cpu=True)


def test_gpu_build_gets_no_cpu_settings(tmp_path: Path) -> None:
    """bfloat16, graphs, its own cache size and executor."""
    argv = engine_argv(*config_for(tmp_path, tool_call_parser=None), is_cpu=False)
    assert option(argv, "--dtype") == "bfloat16"
    for name in ("--enforce-eager", "--kv-cache-memory-bytes", "--distributed-executor-backend", "--tool-call-parser"):
        assert name not in argv
    environment = engine_environment(*config_for(tmp_path), {}, is_cpu=False)
    assert "OMP_NUM_THREADS" not in environment


@pytest.mark.parametrize(
    ("engine", "trainer", "share"),
    [
        ({}, "auto", "0.4"),
        ({"device": "cuda"}, "cuda:0", "0.4"),
        ({"device": "cuda:1"}, "cuda:1", "0.4"),
        ({}, "cuda:1", None),
        ({"device": "cuda:1"}, "auto", None),
        ({}, "cpu", None),
        ({"gpu_memory_utilization": 0.7}, "auto", "0.7"),
        ({"gpu_memory_utilization": 0.7}, "cuda:1", "0.7"),
    ],
)
def test_engine_leaves_memory_to_a_trainer_on_its_gpu(
    engine: dict[str, Any], trainer: str, share: str | None, tmp_path: Path
) -> None:
    """And takes vLLM's own share where the GPU is its alone; on a CPU there is none to share."""
    settings = RunSettings(
        run="test",
        policy=PolicyConfig(model=str(tmp_path)),
        engine=EngineConfig(**engine),
        trainer=TrainerConfig(device=trainer),
    )
    handles = Wiring(prepare_run(settings, tmp_path / "test")).engine()
    argv = engine_argv(settings.engine, handles, is_cpu=False)
    assert (option(argv, "--gpu-memory-utilization") if "--gpu-memory-utilization" in argv else None) == share
    assert "--gpu-memory-utilization" not in engine_argv(settings.engine, handles, is_cpu=True)


def test_a_chat_template_of_ones_own_reaches_engine_and_trainer(tmp_path: Path) -> None:
    """From `[policy]`: what renders the prompts, and what every version's folder holds."""
    own = str(tmp_path / "own.jinja")
    settings = RunSettings(run="test", policy=PolicyConfig(model=str(tmp_path), chat_template=own))
    wiring = Wiring(prepare_run(settings, tmp_path / "test"))
    assert wiring.engine().policy.chat_template == wiring.trainer().chat_template == own


@pytest.mark.parametrize(
    ("device", "visible", "replicas", "ordinal", "expected"),
    [
        ("cuda:1", "", 1, 0, "1"),
        ("cuda:1", "4,7", 1, 0, "7"),
        ("cuda", "4,7", 1, 0, "4,7"),
        ("auto", "4", 1, 0, "4"),
        ("auto", "", 4, 0, "0"),
        ("auto", "4,7", 4, 1, "7"),
        ("cuda:1", "", 4, 2, "3"),
    ],
)
def test_each_engine_is_given_a_gpu(
    device: str, visible: str, replicas: int, ordinal: int, expected: str, tmp_path: Path
) -> None:
    """The one that the key names, counted among the visible ones as the trainer's torch counts; replicas from there."""
    config, handles = config_for(tmp_path, device=device, replicas=replicas)
    handles = msgspec.structs.replace(handles, ordinal=ordinal)
    environment = engine_environment(config, handles, {"CUDA_VISIBLE_DEVICES": visible}, is_cpu=False)
    assert environment["CUDA_VISIBLE_DEVICES"] == expected


def test_a_gpu_that_is_not_visible_is_refused(tmp_path: Path) -> None:
    """By name, before vLLM says it in its own words."""
    with pytest.raises(
        ConfigurationError, match=r"\[engine\] device, replicas: .*the 2 GPUs .*got number 2, .*'cuda:2'"
    ):
        engine_environment(*config_for(tmp_path, device="cuda:2"), {"CUDA_VISIBLE_DEVICES": "4,7"}, is_cpu=False)


def test_environment_is_the_engines_own(tmp_path: Path) -> None:
    """What would disturb it is left out, the user's own kept."""
    base = {"PATH": "/bin", "PYTHONDONTWRITEBYTECODE": "1", "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_PLUGINS": "mine"}
    environment = engine_environment(*config_for(tmp_path, threads=2), base, is_cpu=True)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment[vllm_plugin.TOKEN] == "secret"
    assert environment["VLLM_PLUGINS"] == "mine"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["PATH"] == "/bin"
    assert not {"PYTHONDONTWRITEBYTECODE", "VLLM_CPU_KVCACHE_SPACE"} & environment.keys()


def test_plugin_lies_alone_in_its_folder(tmp_path: Path) -> None:
    """Which is the first of the engine's path; laying it twice is fine."""
    script = install_plugin(str(tmp_path))
    assert install_plugin(str(tmp_path)) == script
    assert list(script.parent.iterdir()) == [script]
    assert script.read_text() == Path(vllm_plugin.__file__).read_text()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("OSError: [Errno 98] Address already in use", "port"),
        ("ValueError: Head size 24 is not supported by CPU", "head_dim"),
        ("User-specified max_model_len (4096) is greater than the derived max_model_len", "context window"),
        ("error: unrecognized arguments: --no-such", "args"),
        ("KeyError: 'invalid tool call parser: x (chose from {})'", "tool_call_parser"),
        ("safetensors_rust.SafetensorError: header", "damaged"),
    ],
    ids=lambda value: value[:20],
)
def test_known_start_failure_is_explained(log: str, words: str) -> None:
    """One sentence that names the key."""
    assert words in (explain(f"INFO x\n{log}\n") or "")
    failed = read_failed_start(f"INFO x\n{log}\n")
    assert (failed.is_lasting, failed.is_passing) == (words != "port", words == "port")  # a port may be free again


def test_unknown_failure_is_not_guessed() -> None:
    """Its log speaks for itself."""
    assert explain("INFO all is well") is None
    assert read_failed_start("INFO all is well") == FailedStart()


class TestModelChecks:
    """`check_model` judges a folder from its files."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A model that passes."""
        (tmp_path / "config.json").write_text(
            json.dumps({"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 4096})
        )
        (tmp_path / "model.safetensors").write_bytes(b"")
        (tmp_path / "tokenizer.json").write_text("{}")
        self.template(tmp_path, CHAT_TEMPLATE)
        return tmp_path

    @staticmethod
    def template(folder: Path, template: Any) -> None:
        """Writes the tokenizer's configuration."""
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": template, "eos_token": {"content": "<e>"}})
        )

    @staticmethod
    def check(folder: Path, *, is_cpu: bool = True, max_model_len: int = 2048, **options: Any) -> None:
        """With defaults."""
        check_model(PolicyConfig(model=str(folder), **options), is_cpu=is_cpu, max_model_len=max_model_len)

    def test_sound_model_passes(self, folder: Path) -> None:
        """Tools, their calls and results show."""
        self.check(folder)

    @pytest.mark.parametrize(
        ("template", "words"),
        [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", "ignores tools"),
            ("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}", "drops the argument"),
            (
                "{{ tools }}{% for m in messages if m.role != 'tool' %}{{ m.content }}{{ m.tool_calls }}{% endfor %}",
                "drops the result",
            ),
            ("{{ raise_exception('tools are not supported') }}", "tools are not supported"),
            ("{% if %}", "cannot render"),
            ("{{ ''.__class__.__mro__ }}{{ tools }}", "cannot render"),
        ],
        ids=["ignored", "calls", "results", "raises", "syntax", "sandbox"],
    )
    def test_template_that_hides_tools_is_refused(self, folder: Path, template: str, words: str) -> None:
        """Saying what it does and what to do; an agent without tools may use it."""
        self.template(folder, template)
        with pytest.raises(ConfigurationError, match=words):
            self.check(folder)
        self.check(folder, tools=False)

    def test_template_with_generation_tags_and_named_templates_are_understood(self, folder: Path) -> None:
        """As transformers reads them."""
        marked = CHAT_TEMPLATE.replace("<tool_call>", "{%- generation %}<tool_call>").replace(
            "</tool_call>", "</tool_call>{% endgeneration %}"
        )
        self.template(folder, [{"name": "default", "template": "x"}, {"name": "tool_use", "template": marked}])
        self.check(folder)
        (folder / "chat_template.jinja").write_text("file wins")
        assert read_chat_template(folder) == "file wins"

    def test_a_template_of_ones_own_is_judged_instead(self, folder: Path) -> None:
        """`[policy] chat_template`, by its own name in what is said of it."""
        own = folder / "own.jinja"
        own.write_text(CHAT_TEMPLATE)
        self.template(folder, None)
        self.check(folder, chat_template=str(own))
        own.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        with pytest.raises(ConfigurationError, match=r"own\.jinja ignores tools"):
            self.check(folder, chat_template=str(own))
        with pytest.raises(ConfigurationError, match=r"\[policy\] chat_template: cannot read .*gone"):
            self.check(folder, chat_template=str(folder / "gone"))

    def test_missing_template_is_refused(self, folder: Path) -> None:
        """A base model has none."""
        self.template(folder, None)
        with pytest.raises(ConfigurationError, match="no chat template"):
            self.check(folder)

    def test_head_dim_unknown_to_the_cpu_build_is_refused(self, folder: Path) -> None:
        """A GPU takes it."""
        (folder / "config.json").write_text(json.dumps({"hidden_size": 48, "num_attention_heads": 2}))
        with pytest.raises(ConfigurationError, match="head_dim 24"):
            self.check(folder)
        self.check(folder, is_cpu=False)

    def test_context_beyond_the_models_is_refused_with_the_number(self, folder: Path) -> None:
        """The message is the remedy."""
        with pytest.raises(ConfigurationError, match="max_model_len = 4096"):
            self.check(folder, max_model_len=8192)

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
    def test_missing_file_is_named(self, folder: Path, name: str) -> None:
        """Instead of a stack trace a minute later."""
        (folder / name).unlink()
        with pytest.raises(ConfigurationError, match=name.replace("model.", r"\*.")):
            self.check(folder)

    def test_garbage_configuration_is_refused(self, folder: Path) -> None:
        """Not JSON; not an object; no folder."""
        for text in ("{", "[]"):
            (folder / "config.json").write_text(text)
            with pytest.raises(ConfigurationError, match=r"config\.json"):
                self.check(folder)
        with pytest.raises(ConfigurationError, match="expected a folder"):
            self.check(folder / "none")
