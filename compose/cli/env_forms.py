"""Variables as what is about to take them reads them: a shell, `docker run`, a Kubernetes container, a `.env` file.

In: names and values. Out: text. Invariant: read back by its reader, the text gives the same names and values; tests do
so. Failure: ConfigurationError, a value that the form cannot hold.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from enum import StrEnum

from tracegrad.schemas.errors import ConfigurationError


class Form(StrEnum):
    """Who reads the variables."""

    PLAIN = "plain"
    """A person: NAME=value."""
    SHELL = "shell"
    """`eval "$(...)"` of sh, bash and zsh."""
    DOCKER = "docker"
    """`docker run --env-file FILE`, which takes each line as it is."""
    K8S = "k8s"
    """`env:` of a container, YAML."""
    DOTENV = "dotenv"
    """A `.env` file, as python-dotenv, Docker Compose and Node's dotenv read it."""


def written(variables: Mapping[str, str], form: Form) -> str:
    """The variables in a form, without the last line's end."""
    head = "env:\n" if form is Form.K8S else ""
    return head + "\n".join(_line(name, value, form) for name, value in variables.items())


def _line(name: str, value: str, form: Form) -> str:
    match form:
        case Form.SHELL:
            return f"export {name}={shlex.quote(value)}"
        case Form.K8S:
            # JSON is YAML, in which a bare ON is true; Kubernetes itself expands $(NAME) in values, and $$ is how it
            # spells $.
            return f"  - name: {json.dumps(name)}\n    value: {json.dumps(value.replace('$(', '$$('))}"
        case Form.DOTENV:
            # In single quotes nothing is expanded, but for the quote and the backslash.
            return "{}='{}'".format(name, value.replace("\\", "\\\\").replace("'", "\\'"))
        case Form.DOCKER if "\n" in value or "\r" in value:
            raise ConfigurationError(
                f"{name}: expected one line, got several, which no --env-file holds; use --form k8s"
            )
    return f"{name}={value}"
