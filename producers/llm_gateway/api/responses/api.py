"""The row of OpenAI Responses."""

from __future__ import annotations

from ..events import Api
from ..openai_error import write_error
from .read import read
from .write import ResponseWriter

__all__ = ["RESPONSES"]

RESPONSES = Api(path="/v1/responses", read=read, read_on=read, write=ResponseWriter, error=write_error)
"""As OpenAI's own clients speak them."""
