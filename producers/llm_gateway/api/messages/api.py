"""The rows of Anthropic Messages: for answers, and for counts of tokens."""

from __future__ import annotations

from ..events import Api
from .read import read, read_to_count
from .write import MessageWriter, write_error

__all__ = ["COUNT_TOKENS", "MESSAGES"]

MESSAGES = Api(path="/v1/messages", read=read, write=MessageWriter, error=write_error)
"""As Anthropic's own clients speak them."""
COUNT_TOKENS = Api(path="/v1/messages/count_tokens", read=read_to_count, write=MessageWriter, error=write_error)
"""Nothing is answered, so nothing is written; its path, reader and errors count."""
