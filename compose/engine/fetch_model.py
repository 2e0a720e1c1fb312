"""A hub name becomes a folder: the model is fetched once, at start, so that every process opens the same files.

In: the policy, whose model may be `org/name`. Out: the same with a folder as its model. Only safetensors, configuration
and tokenizer are fetched; no code, no pickle. Failure: ConfigurationError that says what else to name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.errors import ConfigurationError

_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]


def with_local_model(policy: PolicyConfig, say: Callable[[str], None]) -> PolicyConfig:
    """The policy with a folder as model; fetches a hub name. Blocking, as long as the download takes."""
    name = policy.model
    if name is None or Path(name).is_absolute():
        return policy
    from huggingface_hub import snapshot_download

    say(f"fetching {name} from the hub")
    try:
        folder = snapshot_download(name, allow_patterns=_FILES, etag_timeout=10)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigurationError(
            f"[policy] model = {name!r}: there is no such folder, and the hub gave: {reason}; name a local folder"
        ) from error
    return msgspec.structs.replace(policy, model=str(folder))
