"""An engine for a chat alone: vLLM from a version's folder, on loopback, which takes other versions one after another.

In: a run that need not be up, and the folder of a version. Out: URL and token of who answers by it. Invariants: nothing
of the run is changed: plug-in and log lie in a folder that goes with the chat; the engine dies with this process.
Failure: ConfigurationError or UnavailableError, in the words that `up` has for an engine that does not start.
"""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
import msgspec

from tracegrad.consumers.engine.engine_control import VllmControl
from tracegrad.schemas.credentials import bearer
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.records.versions import Version, parse_label
from tracegrad.schemas.records.weights import VersionManifest, WeightFile

from ..die_with_parent import guarded
from ..engine.failed_start import explain, read_failed_start
from ..engine.server import engine_command
from ..loopback import LOOPBACK, answers, free_port
from ..run.wiring import Wiring

_READY_TIMEOUT_S = 300.0
_LOG_END = 64_000


class ChatEngine:
    """As a context manager: it serves `folder` when the block begins."""

    def __init__(self, wiring: Wiring, folder: str) -> None:
        self._wiring, self._folder = wiring, folder
        self.token = secrets.token_hex(16)
        self.url = f"http://{LOOPBACK}:{free_port()}"
        self._work = tempfile.TemporaryDirectory(prefix="tracegrad-chat-")
        self._log = Path(self._work.name) / "engine.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ChatEngine:
        try:
            self._start()
        except BaseException:  # Ctrl-C too, in half a minute of start: `__exit__` is called behind the block alone
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        self._work.cleanup()

    def _start(self) -> None:
        handles = msgspec.structs.replace(
            self._wiring.engine(),
            model=self._folder,
            work_dir=self._work.name,
            port=int(self.url.rpartition(":")[2]),
            token=self.token,
        )
        argv, env = engine_command(self._wiring.settings.engine, handles)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                guarded(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not answers(f"{self.url}/health"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                end = self._log.read_bytes()[-_LOG_END:].decode("utf-8", "replace")
                cause = read_failed_start(end).cause
                tail = f"it did not start; the end of what it said:\n{end.strip()[-1_000:]}"
                said = explain(f"{cause}\n{end[-6_000:]}") or cause or tail
                raise UnavailableError(f"the engine: {said}")
            time.sleep(0.2)

    def load(self, folder: str, version: int) -> None:
        """Has it answer by another version's weights from now on. Raises UnavailableError, RecordError."""
        if folder == self._folder:
            return
        names = sorted(path.name for path in Path(folder).glob("*.safetensors"))
        of = parse_label(Path(folder).name) or Version(run=self._wiring.record.hash, version=version, epoch=0)
        manifest = VersionManifest(
            run=of.run,
            version=of.version,
            epoch=of.epoch,
            policy=self._wiring.settings.policy.name,
            base_version=of.version,
            kind="full",
            uri=folder,
            files=tuple(WeightFile(name=name, bytes=0, sha256="") for name in names),
            step=0,
            next_offset=0,
        )
        with httpx.Client(base_url=self.url, headers=bearer(self.token), trust_env=False) as client:
            control = VllmControl(client)
            control.load(manifest, folder)
            control.resume()
        self._folder = folder
