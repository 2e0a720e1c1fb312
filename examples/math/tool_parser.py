"""A vLLM tool parser (`--tool-parser-plugin`) for models that write a call as plain JSON: Qwen2.5-Coder mostly does,
whatever its template says. Calls between <tool_call> tags are read as ever.
"""

import json
import re
from typing import Any

from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

BLOCK = re.compile(r"```(?:json)?\s*(\{.*?\})\s*```", re.DOTALL)
LINE = re.compile(r"^(\{.*\})$", re.MULTILINE)


def tagged(text: str) -> str:
    """`text` with tags around each JSON block, and each line of JSON, that is a call; left alone if it has tags."""
    if "<tool_call>" in text:
        return text
    for pattern in (BLOCK, LINE):
        text = pattern.sub(lambda found: f"<tool_call>{found[1]}</tool_call>" if is_call(found[1]) else found[0], text)
    return text


def is_call(text: str) -> bool:
    """Whether this is `{"name": ..., "arguments": {...}}`."""
    try:
        call = json.loads(text)
    except ValueError:
        return False
    return isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)


class JsonBlockToolParser(Hermes2ProToolParser):
    """Hermes, and JSON blocks."""

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        return super().extract_tool_calls(tagged(model_output), request)


ToolParserManager.register_module("json_block", module=JsonBlockToolParser)
