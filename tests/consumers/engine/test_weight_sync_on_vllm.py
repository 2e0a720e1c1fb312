"""Weight sync against a real vLLM that is killed and started again, refused loads, and no orphans."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from tests.consumers.engine.following import following
from tests.engine_fixture import SMALL, RunningEngine
from tests.memory_log import MemoryLog
from tests.serving import ENGINE_TOKEN, is_alive, until
from tests.tiny_models import make_model
from tests.versions import claim, label
from tracegrad.compose.loopback import answers
from tracegrad.schemas.credentials import bearer
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, VersionManifest
from tracegrad.schemas.topics import Topic, Topics

pytestmark = [pytest.mark.engine, pytest.mark.torch, pytest.mark.timeout(600)]

TOPICS = Topics(run=RunName("run"))
PROMPT = [5, 9, 77]


class Versions:
    """The topics of weight sync, in memory: what is published, what was acknowledged."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create_topics(TOPICS, policies=["policy"])
        self._put(WEIGHTS.encode(claim(1)))

    def _put(self, value: bytes) -> None:
        self.log.writer().append(TOPICS.name(Topic.WEIGHTS), key=b"policy", value=value)

    def publish(self, manifest: VersionManifest) -> None:
        """Onto `weights`."""
        self._put(WEIGHTS.encode(manifest))

    def acks(self) -> list[int]:
        """Versions acknowledged."""
        records = self.log.records(TOPICS.name(Topic.WEIGHT_ACKS))
        return [WEIGHT_ACKS.decode(record.value).version for record in records]


def tensors_of(engine: RunningEngine, scale: float) -> dict[str, Any]:
    """The model's tensors, the final norm scaled: another distribution, told apart by its logprobs."""
    from safetensors.torch import load_file

    tensors: dict[str, Any] = dict(load_file(engine.model / "model.safetensors"))
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * scale
    return tensors


def test_engine_that_loaded_nothing_since_its_start_takes_no_label(engine: RunningEngine) -> None:
    """So an engine that was restarted between load and label stays `default`, which gateways refuse."""
    if engine.control.status().label != "default":
        engine.kill()
        engine.launch()
        engine.wait()
    # On a connection of its own: uvicorn closes it after a 500.
    own = bearer(ENGINE_TOKEN)
    answer = httpx.post(f"{engine.url}/finish_weight_update", json={"weight_version": label(9)}, headers=own)
    assert answer.status_code == 500
    assert engine.control.status().label == "default"
    manifest = engine.publish_version(tensors_of(engine, 2.0), 9)
    engine.load(manifest)
    assert engine.control.status().label == label(9)


def test_killed_engine_gets_the_newest_version_again(engine: RunningEngine) -> None:
    """SIGKILL of the API server: its children end by themselves; after the restart its label is the newest again."""
    versions = Versions()
    with following(engine, versions.log, TOPICS):
        for version in (1, 2):
            versions.publish(engine.publish_version(tensors_of(engine, 1.0 + version), version))
            until(lambda: version in versions.acks())  # noqa: B023 - used at once
        spans = engine.generate(PROMPT)["weight_versions"]
        assert [span["version"] for span in spans] == [label(2)]
        children = psutil.Process(engine.pid).children(recursive=True)
        assert children
        engine.kill()
        until(lambda: not any(is_alive(child.pid) for child in children), 20)
        engine.launch()
        engine.wait()
        until(lambda: engine.control.status().label == label(2))
        until(lambda: versions.acks() == [1, 2, 2])
        assert [span["version"] for span in engine.generate(PROMPT)["weight_versions"]] == [label(2)]


def test_engine_left_paused_by_a_killed_weight_sync_is_freed(engine: RunningEngine) -> None:
    """A request waits through the pause and ends after the reload."""
    engine.client.post("/pause", params={"mode": "keep", "clear_cache": "true"})
    answers: list[list[int]] = []
    thread = threading.Thread(target=lambda: answers.append(engine.generate(PROMPT)["token_ids"]))
    thread.start()
    assert engine.control.status().is_paused
    versions = Versions()
    with following(engine, versions.log, TOPICS):
        versions.publish(engine.publish_version(tensors_of(engine, 4.0), 7))
        thread.join(60)
        until(lambda: versions.acks() == [7])
    assert len(answers[0]) == 8


def test_refused_folder_leaves_the_old_weights_serving(engine: RunningEngine, tmp_path: Path) -> None:
    """A tensor missing, another shape, no such folder: refused before the model is touched."""
    import torch

    good = tensors_of(engine, 3.0)
    manifest = engine.publish_version(good, 20)
    engine.load(manifest)
    before = engine.generate(PROMPT, temperature=0.0)
    missing = {name: tensor for name, tensor in good.items() if name != "model.norm.weight"}
    shape = good | {"model.norm.weight": torch.zeros(3)}
    bad = [engine.publish_version(tensors, 21 + i) for i, tensors in enumerate((missing, shape))]
    for refused, words in zip(bad, ("missing", "shape"), strict=True):
        with pytest.raises(RecordError, match=words):
            engine.control.load(refused, refused.uri)
    with pytest.raises(RecordError, match="No such file"):
        engine.control.load(manifest, str(tmp_path))
    engine.control.resume()
    after = engine.generate(PROMPT, temperature=0.0)
    assert (after["token_ids"], after["logprobs"]) == (before["token_ids"], before["logprobs"])


RELOAD_AFTER_A_FAILURE = """
import sys
from pathlib import Path
from types import SimpleNamespace
import torch
from safetensors.torch import save_file
from vllm.model_executor.model_loader.reload.layerwise import record_metadata_for_reloading
from tracegrad.consumers.engine.vllm_plugin import VersionLoader
from vllm.model_executor.model_loader.reload.inplace import reload_weights

root = Path(sys.argv[1])
names = ("0.weight", "0.bias", "1.weight", "1.bias")

class Model(torch.nn.Sequential):
    stop_at = None
    def load_weights(self, tensors):
        for name, tensor in tensors:
            if name == self.stop_at:
                raise OSError("the disk is gone")
            parameter = self.get_parameter(name)
            getattr(parameter, "weight_loader", lambda p, t: p.data.copy_(t))(parameter, tensor)

def version(number):
    folder = root / f"v{number}"
    folder.mkdir()
    tensors = {n: torch.full((3, 3) if n.endswith("weight") else (3,), float(number)) for n in names}
    save_file(tensors, folder / "model.safetensors")
    return str(folder), ["model.safetensors"]

class Worker(VersionLoader):
    def reload_weights(self, weights_iterator):
        reload_weights(self.vllm_config, model, weights_iterator, None, True)

model = Model(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).requires_grad_(False)
record_metadata_for_reloading(model)
worker = Worker()
config = SimpleNamespace(hf_text_config=SimpleNamespace(), model="none", dtype=torch.float32, quantization=None)
worker.vllm_config = SimpleNamespace(model_config=config, load_config=None, lora_config=None)
worker.model_runner = SimpleNamespace(get_model=lambda: model)
worker.load_version(*version(1))
model.stop_at = "1.weight"
try:
    worker.load_version(*version(2))
except OSError:
    pass
else:
    sys.exit("it did not fail")
assert not any(parameter.is_meta for parameter in model.parameters())
model(torch.ones(1, 3))
model.stop_at = None
worker.load_version(*version(3))
assert all(bool((parameter == 3).all()) for parameter in model.parameters()), list(model.parameters())
"""


def test_load_that_fails_half_way_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    """vLLM's own buffers of a failed load would count towards the next one; ours are put back first."""
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-c", RELOAD_AFTER_A_FAILURE, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


SUPERVISOR = """
import os, subprocess, sys, time, msgspec
from tracegrad.compose.engine.config import EngineConfig, EngineHandles
from tracegrad.compose.engine.server import engine_argv, engine_environment, probe
from tracegrad.compose.die_with_parent import guarded
config, handles = msgspec.json.decode(sys.argv[1], type=tuple[EngineConfig, EngineHandles])
is_cpu = probe(config)
environment = engine_environment(config, handles, os.environ, is_cpu=is_cpu)
child = subprocess.Popen(guarded(engine_argv(config, handles, is_cpu=is_cpu)), env=environment,
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def supervised(engine: RunningEngine) -> Iterator[psutil.Process]:
    """The server, started by another process that is killed at the end; nothing outlives that one."""
    arguments = msgspec.json.encode((engine.config, engine.handles)).decode()
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, arguments], stdout=subprocess.PIPE, text=True)
    family: list[psutil.Process] = []
    try:
        assert supervisor.stdout is not None
        server = psutil.Process(int(supervisor.stdout.readline()))
        yield server
        family = [server, *server.children(recursive=True)]
    finally:
        engine.client.close()
        supervisor.send_signal(signal.SIGKILL)
        supervisor.communicate()
    assert len(family) > 2
    until(lambda: not any(is_alive(process.pid) for process in family), 20)


def test_an_engine_in_its_start_dies_with_its_supervisor(tmp_path: Path) -> None:
    """The server, and the core that it has just spawned."""
    with supervised(RunningEngine(tmp_path, make_model(tmp_path / "model"))) as server:
        until(lambda: len(server.children()) >= 2, 200)


def test_engine_of_another_environment_gets_the_plugin_by_its_path(tmp_path: Path) -> None:
    """An interpreter where tracegrad cannot be imported: only the folder laid beside it brings the plug-in.

    With it the engine serves what it is given, and dies with its supervisor.
    """
    import sysconfig

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=60)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # A path in a .pth file is added as it is: the editable install's own .pth there is not followed.
    (site / "neighbour.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    alone = subprocess.run([str(python), "-c", "import tracegrad.consumers"], cwd=tmp_path, capture_output=True)
    assert alone.returncode != 0
    config = msgspec.structs.replace(SMALL, python=str(python))
    engine = RunningEngine(tmp_path / "e", make_model(tmp_path / "model"), config)
    with supervised(engine):
        until(lambda: answers(f"{engine.url}/health"), 300)
        manifest = engine.publish_version(tensors_of(engine, 2.0), 1)
        engine.load(manifest)
        assert [span["version"] for span in engine.generate(PROMPT)["weight_versions"]] == [label(1)]
