"""`[engine] tool_call_parser = "json_block"`: vLLM's tool parser for models that write a call as plain JSON, whatever
their template says, as Qwen2.5-Coder mostly does.

In: what was sampled. Out: what vLLM's Hermes parser reads of it once tags stand around each call that is a fenced
block, a line, or lines from `{` to `}`; a text with tags of its own is left as it is. vLLM loads this very file
(`--tool-parser-plugin`), so it imports nothing of ours. Failure: what is no call stays text.
"""

import json
import re
from typing import Any

from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

_OBJECT = re.compile(r"```(?:json)?\s*(\{.*?\})\s*```|^(\{[^\n]*\}|\{\n.*?\n\})$", re.DOTALL | re.MULTILINE)


def tagged(found: re.Match[str]) -> str:
    """The object between tags if it is `{"name": ..., "arguments": {...}}`, else the text as it was."""
    text = found[1] or found[2]
    try:
        call = json.loads(text)
    except ValueError:
        return found[0]
    is_call = isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)
    return f"<tool_call>{text}</tool_call>" if is_call else found[0]


class JsonBlockToolParser(Hermes2ProToolParser):
    """Hermes, and JSON blocks."""

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        has_tags = self.tool_call_start_token in model_output
        return super().extract_tool_calls(model_output if has_tags else _OBJECT.sub(tagged, model_output), request)


ToolParserManager.register_module("json_block", module=JsonBlockToolParser)
