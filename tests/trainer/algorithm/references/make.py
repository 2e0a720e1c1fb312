"""Writes the references beside it: what other libraries' own functions give on small random batches.

Never run in CI, and no test imports it. In a virtual environment of its own, with torch, transformers and accelerate:

    pip install --no-deps verl==0.9.1 trl==1.16.0 areal==1.0.4 openrlhf==0.11.2 tensordict==0.15.3 codetiming==1.4.0 \\
        hydra-core==1.3.8 omegaconf==2.4.0 antlr4-python3-runtime==4.9.3 msgpack==1.2.4 pyvers==0.2.3 ray==2.60.0 \\
        pandas==3.1.1 datasets==5.2.0 dill==0.4.1 xxhash==4.1.0 multiprocess==0.70.19 platformdirs==4.14.7
    cd tests/trainer/algorithm && python -m references.make

In: nothing. Out: verl.json, trl.json, areal.json, openrlhf.json; `sources` says what a case calls. What those libraries
import besides (servers, loggers, kernels) is replaced by empty modules where it is missing: no loss reaches it.
Failure: the library's own error; nothing is written then.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from .batches import batches

_PRETENDED = """
    aiofiles aiohttp colorlog datasets deepspeed fastapi flash_attn flask jsonlines loguru math_verify mbridge megatron
    ninja openai peft prettytable pybase64 pylatexenc pynvml ray sglang swanlab tabulate tensorboard tensorboardX
    torchdata trackio uvicorn uvloop viztracer vllm wandb werkzeug
"""
"""What a loss does not need."""


class _Empty(types.ModuleType):
    """A module in which everything is there and does nothing."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = MagicMock(name=name)
        setattr(self, name, value)
        return value


class _Pretender(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nobody else found."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        is_known = name.split(".")[0] in _PRETENDED.split()
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def main(folder: Path) -> None:
    """Writes one file a library, a case a line."""
    sys.meta_path.append(_Pretender())
    drawn = batches()
    texts = {}
    for library in ("verl", "trl", "areal", "openrlhf"):
        cases: dict[str, list[dict[str, Any]]] = importlib.import_module(f".of_{library}", __package__).cases(drawn)
        used = {case["batch"] for kind in cases.values() for case in kind}
        lines = [
            f'"library": "{library}", "version": "{importlib.metadata.version(library)}"',
            *(
                f'"{kind}": {{\n' + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table.items()) + "\n}"
                for kind, table in [("batches", {name: drawn[name].record for name in drawn if name in used})]
            ),
            *(f'"{kind}": [\n' + ",\n".join(map(json.dumps, table)) + "\n]" for kind, table in cases.items()),
        ]
        texts[library] = "{\n" + ",\n".join(lines) + "\n}\n"
    for library, text in texts.items():
        json.loads(text)
        (folder / f"{library}.json").write_text(text)


if __name__ == "__main__":
    main(Path(__file__).parent)
