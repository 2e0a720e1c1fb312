"""A model, or its tensors, read from a Hugging Face folder by transformers.

In: a folder. Out: the model, or its parameters by name. Invariants: safetensors only, no code from the folder, nothing
from elsewhere; each tensor that is read is a beat. Failure: ConfigurationError names the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tracegrad.schemas.beat import units
from tracegrad.schemas.errors import ConfigurationError


def read_tensors(path: Path, names: set[str]) -> dict[str, Tensor]:
    """Those of the tensors that a file has, float32. Raises OSError where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).float() for name in sorted(names & set(file.keys()))}
    except SafetensorError as error:
        raise OSError(f"{path} is not readable: {error}") from error


def load_tensors(folder: Path) -> dict[str, Tensor]:
    """The parameters of a published folder by the model's own names, float32. Raises ConfigurationError where the
    files lack one, which would be random."""
    model, lacks = read_model(folder, torch.float32)
    if lacks:
        raise ConfigurationError(f"expected all tensors of the model in {folder}, got none of {', '.join(lacks)[:300]}")
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def read_model(folder: Path, dtype: torch.dtype) -> tuple[Any, list[str]]:
    """The model as transformers loads it, with a beat for each tensor in the place of its progress bar; and what its
    files lack."""
    import transformers

    bars: Any = transformers.utils.logging
    bars.disable_progress_bar()
    before = bars.set_tqdm_hook(
        lambda bar, args, rest: bar(*(units("loading the model", pieces) for pieces in args[:1]), *args[1:], **rest)
    )
    try:
        library: Any = transformers.AutoModelForCausalLM
        model, told = library.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        return model, sorted(told["missing_keys"])
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError) as error:  # the last: tensors that fit no parameter
        raise ConfigurationError(f"[policy] model: {folder} cannot be loaded: {str(error)[:300]}") from error
    finally:
        bars.set_tqdm_hook(before)
