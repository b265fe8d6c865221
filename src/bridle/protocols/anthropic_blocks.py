"""Content blocks of the Anthropic Messages API and what they are in a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bridle.messages import Image, Message, Note, Part, Thinking, ToolCall
from bridle.protocols.arguments import from_object
from bridle.protocols.wire import file_parts, linked_file, linked_image, texts, titled

ATTRIBUTION = "x-anthropic-billing-header"
"""Claude Code heads its system prompt with a line of this name; in some versions it changes with every request."""

# --- shapes on the wire; unknown keys are dropped ---------------------------------------------------------------------


class TextBlock(msgspec.Struct, tag="text"):
    text: str


class Base64Source(msgspec.Struct, tag="base64"):
    media_type: str
    data: str


class UrlSource(msgspec.Struct, tag="url"):
    url: str


class ImageBlock(msgspec.Struct, tag="image"):
    source: Base64Source | UrlSource


class TextSource(msgspec.Struct, tag="text"):
    data: str


class ContentSource(msgspec.Struct, tag="content"):
    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(msgspec.Struct, tag="document"):
    source: Base64Source | UrlSource | TextSource | ContentSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(msgspec.Struct, tag="search_result"):
    source: str
    title: str
    content: list[TextBlock]


class ToolReferenceBlock(msgspec.Struct, tag="tool_reference"):
    """A tool that a search among deferred tools found; it is offered with the others anyway."""

    tool_name: str


class CompactionBlock(msgspec.Struct, tag="compaction"):
    content: str | None = None


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, tag="redacted_thinking"):
    data: str


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    id: str
    name: str
    input: Any


class Hosted(msgspec.Struct):
    """Calls and results of tools that run at the provider, and marks for its servers: no model of ours reads them."""


class ServerToolUse(Hosted, tag="server_tool_use"): ...


class WebSearchResult(Hosted, tag="web_search_tool_result"): ...


class WebFetchResult(Hosted, tag="web_fetch_tool_result"): ...


class CodeExecutionResult(Hosted, tag="code_execution_tool_result"): ...


class BashCodeExecutionResult(Hosted, tag="bash_code_execution_tool_result"): ...


class TextEditorCodeExecutionResult(Hosted, tag="text_editor_code_execution_tool_result"): ...


class ToolSearchResult(Hosted, tag="tool_search_tool_result"): ...


class AdvisorResult(Hosted, tag="advisor_tool_result"): ...


class McpToolUse(Hosted, tag="mcp_tool_use"): ...


class McpToolResult(Hosted, tag="mcp_tool_result"): ...


class McpToolListing(Hosted, tag="mcp_tool_listing"): ...


class ContainerUpload(Hosted, tag="container_upload"): ...


class BrowserState(Hosted, tag="browser_state"): ...


class ToolAddition(Hosted, tag="tool_addition"): ...


class ToolRemoval(Hosted, tag="tool_removal"): ...


class Fallback(Hosted, tag="fallback"): ...


AnyHosted = (
    ServerToolUse
    | WebSearchResult
    | WebFetchResult
    | CodeExecutionResult
    | BashCodeExecutionResult
    | TextEditorCodeExecutionResult
    | ToolSearchResult
    | AdvisorResult
    | McpToolUse
    | McpToolResult
    | McpToolListing
    | ContainerUpload
    | BrowserState
    | ToolAddition
    | ToolRemoval
    | Fallback
)
Seen = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock | AnyHosted


class ToolResultBlock(msgspec.Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[Seen] | None = None
    is_error: bool | None = None


class UserTurn(msgspec.Struct, tag_field="role", tag="user"):
    content: str | list[Seen | ToolResultBlock]


class AssistantTurn(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | list[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | CompactionBlock | AnyHosted]


class SystemTurn(msgspec.Struct, tag_field="role", tag="system"):
    content: str | list[TextBlock | AnyHosted]


Turn = UserTurn | AssistantTurn | SystemTurn
KNOWN = {
    "messages[].role": "user, assistant, system",
    "messages[].content[].type": (
        "text, image, document, search_result, tool_result in user messages; text, thinking, redacted_thinking, "
        "tool_use in assistant messages; text in system messages; blocks of tools that run at the provider"
    ),
    "messages[].content[].content[].type": "text, image, document, search_result, tool_reference",
    "messages[].content[].source.type": "base64, url; in documents also text, content",
    "messages[].content[].content[].source.type": "base64, url; in documents also text, content",
    "messages[].content[].source.content[].type": "text, image",
    "system[].type": "text",
}


def system_message(content: str | Sequence[TextBlock | AnyHosted], at: str, notes: list[Note]) -> Message:
    said = [content] if isinstance(content, str) else [block.text for block in _own(content, at, notes)]
    if said and said[0].startswith(ATTRIBUTION):
        line, _, rest = said[0].partition("\n")
        notes.append(Note("attribution_removed", line))
        said[0] = rest.lstrip("\n")
    return Message("system", tuple(part for text in said for part in texts(text)))


def turn_messages(turn: Turn, at: str, notes: list[Note]) -> Iterator[Message]:
    """`at`: where the turn stands, for notes."""
    match turn:
        case UserTurn(content):
            yield from [Message("user", texts(content))] if isinstance(content, str) else _user(content, at, notes)
        case AssistantTurn(content):
            yield _assistant(content, at, notes)
        case SystemTurn(content):
            yield system_message(content, f"{at}.content", notes)


def _user(content: Sequence[Seen | ToolResultBlock], at: str, notes: list[Note]) -> Iterator[Message]:
    """Tool results become messages of their own; what stands between them stays where it stands."""
    parts: list[Part] = []
    results = False
    for index, block in enumerate(content):
        if isinstance(block, ToolResultBlock):
            if parts:
                yield Message("user", tuple(parts))
            parts, results = [], True
            yield _result(block, f"{at}.content[{index}]", notes)
        else:
            parts.extend(_seen(block, f"{at}.content[{index}]", notes))
    if parts or not results:
        yield Message("user", tuple(parts))


def _result(block: ToolResultBlock, at: str, notes: list[Note]) -> Message:
    content = block.content or ""
    if isinstance(content, str):
        parts: tuple[Part, ...] = texts(content)
    else:
        parts = tuple(
            part for index, inner in enumerate(content) for part in _seen(inner, f"{at}.content[{index}]", notes)
        )
    return Message("tool", parts, call_id=block.tool_use_id, is_error=bool(block.is_error))


def _assistant(content: str | Sequence[Any], at: str, notes: list[Note]) -> Message:
    if isinstance(content, str):
        return Message("assistant", texts(content), form="string")
    parts: list[Part] = []
    for index, block in enumerate(content):
        match block:
            case TextBlock():
                parts.extend(texts(block.text))
            case ThinkingBlock():
                if block.thinking or block.signature:
                    parts.append(Thinking(block.thinking, block.signature))
            case ToolUseBlock():
                parts.append(ToolCall(block.id, block.name, from_object(block.input)))
            case CompactionBlock():
                parts.extend(texts(block.content or ""))
            case RedactedThinkingBlock():
                notes.append(Note("redacted_thinking", f"{at}.content[{index}] left out"))
            case Hosted():
                notes.append(_left_out(block, f"{at}.content[{index}]"))
    return Message("assistant", tuple(parts))


def _seen(block: Seen, at: str, notes: list[Note]) -> tuple[Part, ...]:
    match block:
        case TextBlock():
            return texts(block.text)
        case ImageBlock():
            return (_image(block.source),)
        case DocumentBlock():
            return tuple(_document(block))
        case SearchResultBlock():
            return texts(titled(f"{block.title}\n{block.source}", *(inner.text for inner in block.content)))
        case ToolReferenceBlock():
            return texts(block.tool_name)
    notes.append(_left_out(block, at))
    return ()


def _document(block: DocumentBlock) -> Iterator[Part]:
    """What the document says of itself stands in front of it, unless the part has a place for it."""
    title, context = block.title or "", block.context or ""
    match block.source:
        case TextSource(data):
            yield from texts(titled(title, context, data))
        case ContentSource(str() as text):
            yield from texts(titled(title, context, text))
        case ContentSource(list() as blocks):
            yield from texts(titled(title, context))
            for inner in blocks:
                yield from texts(inner.text) if isinstance(inner, TextBlock) else [_image(inner.source)]
        case Base64Source(media_type, data):
            yield from texts(context)
            yield from file_parts(media_type, data, title)
        case UrlSource(url):
            yield from texts(context)
            yield from linked_file(url, title)


def _image(source: Base64Source | UrlSource) -> Image:
    return Image(source.media_type, source.data) if isinstance(source, Base64Source) else linked_image(source.url)


def _own(content: Sequence[TextBlock | AnyHosted], at: str, notes: list[Note]) -> Iterator[TextBlock]:
    for index, block in enumerate(content):
        if isinstance(block, TextBlock):
            yield block
        else:
            notes.append(_left_out(block, f"{at}[{index}]"))


def _left_out(block: Hosted, at: str) -> Note:
    return Note("server_block_dropped", f"{at}: {block.__struct_config__.tag}")
