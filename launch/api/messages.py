"""What a chat says: messages, tools, what its template is told, and the schema that an answer is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from launch.api.body import Fields, check_text, shown, wrong
from launch.api.errors import ApiError
from launch.api.tables import PART

LIKE = '[{"role": "user", "content": "…"}]'
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXTS = ("name", "reasoning_content", "reasoning", "thinking")  # of a message, besides its content
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# What transformers' apply_chat_template takes itself: its template would never see it.
NO_SETTINGS = (
    "messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize",
    "padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template makes a text of.

    Parameters
    ----------
    messages
        From the oldest on.
    settings
        What some templates ask for besides.
    tools
        Functions that the template shows the model; None: it says nothing of them.
    opens
        Whether the text ends where an answer begins.
    continues
        Whether it ends within the last message, which the answer continues.
    """

    messages: Sequence[dict[str, str]]
    settings: dict[str, Any] = field(default_factory=dict)
    tools: Sequence[dict[str, Any]] | None = None
    opens: bool = True
    continues: bool = False


def conversation_of(body: Fields, reads: Callable[[str], bool]) -> Conversation:
    """Return the conversation of a body; `reads` says whether the model's template uses a name.

    Raises
    ------
    ApiError
        If something of it is not as it must be, or the template would pass it over.
    """
    continues = body.flag("continue_final_message")
    opens = body.flag("add_generation_prompt", otherwise=not continues)
    if continues and opens:
        complaint = "continue_final_message and add_generation_prompt are both true: an answer is a new one or goes on"
        raise ApiError(400, complaint, "continue_final_message", "invalid_value")
    return Conversation(
        _messages(body.value("messages")), _settings(body, reads), _tools(body, reads), opens, continues
    )


def schema_of(body: Fields) -> dict[str, Any] | None:
    """Return the schema of an answer that is to be JSON; None where it is free text.

    Raises
    ------
    ApiError
        If there is none where one is said to be, or two.
    """
    schema = _wished(body.object("response_format"))
    if "json_schema" not in body:
        return schema
    if schema is not None:
        raise ApiError(400, "json_schema and response_format both say it: give one", "json_schema", "invalid_value")
    own = body.value("json_schema")
    if not isinstance(own, dict):
        raise wrong("json_schema", "an object", own)
    return own


def _wished(wished: Fields) -> dict[str, Any] | None:
    kind = wished.value("type")
    place = {None: None, "text": None, "json_object": "schema", "json_schema": "json_schema"}
    if isinstance(kind, list | dict) or kind not in place:
        complaint = f"response_format.type is {shown(kind)}, must be text, json_object or json_schema"
        raise ApiError(400, complaint, "response_format.type", "invalid_value")
    for name in ("schema", "json_schema"):
        if name in wished and name != place[kind]:
            where = f"response_format.{name}"
            complaint = f"{where} says nothing where response_format.type is {shown(kind or 'text')}: leave it out"
            raise ApiError(400, complaint, where, "unsupported_parameter")
    if place[kind] is None:
        return None
    if kind == "json_object":
        schema, name = wished.value("schema"), "response_format.schema"
        schema = {"type": "object"} if schema is None else schema
    else:
        schema, name = wished.object("json_schema").value("schema"), "response_format.json_schema.schema"
    if not isinstance(schema, dict):
        raise wrong(name, "an object", schema)
    return schema


def _messages(messages: Any) -> list[dict[str, str]]:
    """Return a conversation as chat templates read it."""
    if messages is None:
        complaint = f"messages is missing, it must be a list like {LIKE}"
        raise ApiError(400, complaint, "messages", "missing_required_parameter")
    if not isinstance(messages, list):
        raise wrong("messages", f"a list like {LIKE}", messages)
    if not messages:
        raise ApiError(400, f"messages is empty: give one at least, like {LIKE}", "messages", "empty_array")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise wrong(where, "an object", message)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        complaint = f"{where}: only plain messages of {', '.join(ROLES)} are supported"
        raise ApiError(400, complaint, f"{where}.role", "invalid_value")
    found = {"role": ROLES[role], "content": _content(message.get("content"), f"{where}.content")}
    texts = {name: check_text(message[name], f"{where}.{name}") for name in TEXTS if message.get(name) is not None}
    # Templates ask for thoughts by one of three names, as transformers gives them.
    thoughts = next((texts[name] for name in ("reasoning_content", "thinking", "reasoning") if name in texts), None)
    return found | texts | ({} if thoughts is None else {"reasoning_content": thoughts, "thinking": thoughts})


def _content(content: Any, where: str) -> str:
    """Return the text of a message: a string, or parts that are all text."""
    if not isinstance(content, list):
        return check_text(content, where)
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise ApiError(400, f"{where}: only parts of type text are supported", where, "unsupported_content")
        Fields(part).check(PART, f"{where}[{number}].")
    return "".join(check_text(part.get("text"), f"{where}.text") for part in content)


def _settings(body: Fields, reads: Callable[[str], bool]) -> dict[str, Any]:
    settings = dict(body.mapping("chat_template_kwargs"))
    for name in NO_SETTINGS:
        if name in settings:
            raise ApiError(
                400, f"chat_template_kwargs has {name}: that is no setting of a template", name, "invalid_value"
            )
    effort = body.value("reasoning_effort")
    if effort is None:
        return settings
    if effort not in EFFORTS:
        complaint = f"reasoning_effort is {shown(effort)}, must be one of {', '.join(EFFORTS)}"
        raise ApiError(400, complaint, "reasoning_effort", "invalid_value")
    if reads("reasoning_effort") or reads("enable_thinking"):
        return {"reasoning_effort": effort, "enable_thinking": effort != "none"} | settings
    if effort == "none":
        return settings
    complaint = "reasoning_effort is not supported: the model's chat template asks for none: leave it out"
    raise ApiError(400, complaint, "reasoning_effort", "unsupported_parameter")


def _tools(body: Fields, reads: Callable[[str], bool]) -> list[dict[str, Any]] | None:
    """Return the functions that a template shows the model; what it makes of them stays text."""
    tools = body.value("tools") or []
    if not isinstance(tools, list):
        raise wrong("tools", "a list of functions", tools)
    choice = body.value("tool_choice") or ("auto" if tools else "none")
    if choice not in ("none", "auto"):
        complaint = "tool_choice is not supported: functions are not called: give none, or auto for an answer as text"
        raise ApiError(400, complaint, "tool_choice", "unsupported_parameter")
    for number, tool in enumerate(tools):
        _check_tool(tool, f"tools[{number}]", chosen=choice == "auto")
    if not tools:
        return None
    if choice == "auto" and not body.flag("parallel_tool_calls", otherwise=True):
        complaint = "parallel_tool_calls is not supported: what a model writes of calls stays text: leave it out"
        raise ApiError(400, complaint, "parallel_tool_calls", "unsupported_parameter")
    if choice == "auto" and not reads("tools"):
        complaint = "tools is not supported: the model's chat template shows it none: leave it out, or tool_choice none"
        raise ApiError(400, complaint, "tools", "unsupported_parameter")
    return tools


def _check_tool(tool: Any, where: str, *, chosen: bool) -> None:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict) or tool.get("type") != "function":
        complaint = f'{where} must be like {{"type": "function", "function": {{"name": "…", "parameters": {{}}}}}}'
        raise ApiError(400, complaint, where, "invalid_value")
    check_text(tool["function"].get("name"), f"{where}.function.name")
    if chosen and tool["function"].get("strict"):
        name = f"{where}.function.strict"
        complaint = f"{name} is not supported: nothing holds calls to a schema: leave it out"
        raise ApiError(400, complaint, name, "unsupported_parameter")
