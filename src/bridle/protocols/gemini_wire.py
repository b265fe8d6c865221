"""What stands in a Gemini request: its shapes, keys in either spelling, and the turn's identity in `thoughtSignature`.

Google reads keys in camelCase and in snake_case; everything here is declared in the one and mended into it.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from typing import Annotated, Any, Literal

import msgspec

from bridle.errors import BadRequest
from bridle.messages import Note
from bridle.protocols.wire import Count, Integer, StopText, read

# --- shapes on the wire; unknown keys are dropped, null is as good as absent ------------------------------------------


class Shape(msgspec.Struct, rename="camel"):
    pass


class Blob(Shape):
    mime_type: str
    data: str
    display_name: str | None = None


class FileData(Shape):
    file_uri: str
    mime_type: str | None = None
    display_name: str | None = None


class FunctionCall(Shape):
    name: str
    id: str | None = None
    args: dict[str, Any] | None = None


class ResponsePart(Shape):
    inline_data: Blob | None = None
    file_data: FileData | None = None


class FunctionResponse(Shape):
    name: str | None = None
    id: str | None = None
    response: dict[str, Any] | None = None
    parts: list[ResponsePart] | None = None


class WirePart(Shape):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    executable_code: Any = None
    code_execution_result: Any = None


class Content(Shape):
    role: Literal["user", "model", "function", ""] | None = None
    parts: list[WirePart] | None = None


class Declaration(Shape):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class ToolSpec(Shape):
    """Everything but the declarations runs at the provider."""

    function_declarations: list[Declaration] | None = None
    google_search: Any = None
    google_search_retrieval: Any = None
    google_maps: Any = None
    enterprise_web_search: Any = None
    retrieval: Any = None
    url_context: Any = None
    code_execution: Any = None
    computer_use: Any = None
    file_search: Any = None
    mcp_servers: Any = None


class CallingConfig(Shape):
    mode: Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"] | None = None
    allowed_function_names: list[str] | None = None


class ToolConfig(Shape):
    function_calling_config: CallingConfig | None = None


class ThinkingConfig(Shape):
    thinking_budget: Integer | None = None
    thinking_level: str | None = None
    include_thoughts: bool | None = None


class GenerationConfig(Shape):
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Annotated[float, msgspec.Meta(ge=0, le=2**31)] | None = None
    seed: Integer | None = None
    stop_sequences: list[StopText] | None = None
    max_output_tokens: Count | None = None
    candidate_count: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_logprobs: bool | None = None
    logprobs: Integer | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    thinking_config: ThinkingConfig | None = None


class Body(Shape):
    """Of every call. `generate_content_request`: what the count-tokens call may hold instead of contents alone."""

    contents: list[Content] | None = None
    model: str | None = None
    system_instruction: str | Content | list[WirePart] | None = None
    tools: list[ToolSpec] | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None
    cached_content: str | None = None
    labels: dict[str, str] | None = None
    generate_content_request: Body | None = None


BODY = msgspec.json.Decoder(Body)
ANYTHING = msgspec.json.Decoder()
KNOWN = {
    "contents[].role": "user, model, function",
    "toolConfig.functionCallingConfig.mode": "AUTO, ANY, NONE, VALIDATED",
}

# --- keys -------------------------------------------------------------------------------------------------------------

CAMEL = {
    field.name: field.encode_name
    for shape in Shape.__subclasses__()
    for field in msgspec.structs.fields(shape)
    if field.name != field.encode_name
}
# Possessive, because a text of megabytes would else be gone through twice.
SNAKE_KEY = re.compile(rb'"([a-z]++(?:_[a-z]++)++)"\s*+:')
OTHERS_OWN = {
    "args",
    "response",
    "parameters",
    "parametersJsonSchema",
    "responseSchema",
    "responseJsonSchema",
    "labels",
}
"""What stands under these keys has keys of the client's own."""


def read_body(body: bytes) -> tuple[Body, tuple[Note, ...]]:
    """-> the body, and what had to be mended. Raises BadRequest with the path of the bad key."""
    if not any(key.decode() in CAMEL for key in SNAKE_KEY.findall(body)):
        return read(body, BODY, KNOWN)
    value, mended = read(body, ANYTHING, {})
    try:
        camel = msgspec.json.encode(_camel(value))
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply; flatten it") from error
    return read(camel, BODY, KNOWN)[0], mended


def _camel(value: Any) -> Any:
    if isinstance(value, list):
        return [_camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = ((CAMEL.get(key, key), inner) for key, inner in value.items())
    return {key: inner if key in OTHERS_OWN else _camel(inner) for key, inner in renamed}


# --- the turn's identity ----------------------------------------------------------------------------------------------


class Identity(msgspec.Struct, array_like=True, frozen=True):
    """`signature`: the turn's; `call`: the id of the call whose part carries it."""

    signature: str = ""
    call: str = ""


def sealed(signature: str, call: str = "") -> str:
    """What goes into `thoughtSignature`, which Google's clients hold as base64. The call's id is in it too: Google's
    ids are optional, so clients drop them or put their own in their place, and keep the signature."""
    return b64encode(msgspec.json.encode(Identity(signature, call))).decode() if signature or call else ""


def unsealed(text: str | None) -> Identity:
    """Empty for one that was not made here: another provider's, or the placeholder clients put in its place."""
    try:
        return msgspec.json.decode(b64decode(standard_base64(text or "") + "=="), type=Identity)
    except (msgspec.DecodeError, ValueError):
        return Identity()


def standard_base64(data: str) -> str:
    """Google's Python client writes the alphabet for URLs."""
    return data.replace("-", "+").replace("_", "/")
