"""A vLLM tool parser (`--tool-parser-plugin`) for models that write a call as a JSON block: Qwen2.5-Coder mostly does,
whatever its template says. Calls between <tool_call> tags are read as ever.
"""

import json
import re
from typing import Any

from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

BLOCK = re.compile(r"```(?:json)?\s*(\{.*?\})\s*```", re.DOTALL)


def tagged(text: str) -> str:
    """`text` with each JSON block that is a call between tags."""
    return BLOCK.sub(lambda block: f"<tool_call>{block[1]}</tool_call>" if is_call(block[1]) else block[0], text)


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
