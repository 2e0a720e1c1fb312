"""The demo's parts: the calculator example and its warm-started policy, which the wheel brings too; its report.

In: nothing. Out: the example's TOML file, with the policy beside it; what every run reports, and the proof besides.
The policy is made again when a file of it is gone. Failure: ConfigurationError when that cannot be done.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tracegrad.schemas.errors import ConfigurationError

from ..verify.check_served import check_served
from .report import make_report
from .show import Show
from .wiring import Wiring

__all__ = ["calculator_file", "demo_report"]

_FOLDER = Path(__file__).resolve().parents[2] / "examples" / "calculator"
"""Two up is the checkout, or the installed package: the rooms and the examples lie side by side in both."""
_FILES = ("config.json", "model.safetensors", "tokenizer.json")
_WARM_START_TIMEOUT_S = 1800.0


def calculator_file() -> Path:
    """The example's settings; makes its policy first when it is missing (two minutes)."""
    missing = [name for name in _FILES if not (_FOLDER / "policy" / name).is_file()]
    if missing:
        sys.stderr.write(f"the warm-started policy lacks {', '.join(missing)}; making it (about two minutes)\n")
        _make_policy()
    return _FOLDER / "tracegrad.toml"


def demo_report(wiring: Wiring, show: Show) -> bool:
    """The report of every run, and the proof of the weights that served; returns whether both hold."""
    is_complete = make_report(wiring, show)
    return check_served(wiring, show) and is_complete


def _make_policy() -> None:
    command = [sys.executable, str(_FOLDER / "warm_start.py")]
    try:
        subprocess.run(command, cwd=_FOLDER, check=True, timeout=_WARM_START_TIMEOUT_S, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"the warm start failed:\n{error.stderr[-2000:]}") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"the warm start took longer than {_WARM_START_TIMEOUT_S:g} s") from error
