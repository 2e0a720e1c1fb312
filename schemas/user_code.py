"""A user's Python file, run in this process: what settings name as `file.py:name`.

In: a file, or `file.py:name`. Out: its module, or the function of that name. Modules beside the file can be imported.
Failure: ConfigurationError that begins with the key and names the line; whatever the user's code raises is told so.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigurationError
from .section import nearest

__all__ = ["function_of", "module_of"]


def module_of(file: str, key: str) -> ModuleType:
    """The file's module, run anew, under a name that meets none of ours."""
    spec = importlib.util.spec_from_file_location(f"tracegrad_user_{Path(file).stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{key}: expected a Python file, got {file}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.append(str(Path(file).parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        at = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        where = f"line {(at or [getattr(error, 'lineno', 0)])[-1]}: {type(error).__name__}"
        raise ConfigurationError(f"{key}: {file} cannot be run: {where}: {error}; mend it and start again") from error
    return module


def function_of(reference: str, key: str) -> Callable[..., Any]:
    """The function that `file.py:name` names."""
    file, _, name = reference.rpartition(":")
    module = module_of(file, key)
    found = getattr(module, name, None)
    if not callable(found):
        there = [one for one, value in vars(module).items() if callable(value)]
        hint = f"; {nearest(name, there)}" if there else ""
        raise ConfigurationError(f"{key}: expected a function {name!r} in {file}, got {found!r}{hint}")
    return found  # type: ignore[no-any-return]
