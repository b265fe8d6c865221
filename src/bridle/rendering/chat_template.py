"""A Hugging Face chat template, compiled once, and the form in which it wants a conversation.

Knows text only: no tokens. The environment is the one `transformers` renders in, so a template gives the same text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any, Literal

import jinja2
import msgspec
import orjson
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bridle.errors import ConfigError, TemplateError
from bridle.messages import Document, Image, Message, Switches, Text, Tool, ToolCall

Protect = Callable[[str], str]
"""What is done to every body (text that is not the template's own) before the template sees it."""

RENDER_DATE = datetime(2026, 1, 1)
"""What `strftime_now` says unless told otherwise: a clock would give one group different prompts, and break every held
prefix at midnight."""


THINKING = frozenset({"enable_thinking", "thinking"})
"""Under these names templates read whether to think (Qwen and GLM; DeepSeek)."""

EFFORT = "reasoning_effort"

WORD = re.compile("[a-z][a-z0-9_]{0,31}")
"""What an effort may be: it comes from a client and stands in the template's own text."""


class CallStyle(msgspec.Struct, frozen=True):
    """How a template takes calls. `arguments`: as the object they spell, or as JSON text. `silent`: the content of a
    message that calls and says nothing. `short_ids`: ids of nine characters, as Mistral's templates insist on.
    `shown`: whether calls are written at all; `beside`: a text beside calls too, `parallel`: several in one message;
    `named`: the name of a call too (Kimi writes its id alone)."""

    arguments: Literal["object", "text"] = "object"
    silent: str | None = ""
    short_ids: bool = False
    shown: bool = True
    beside: bool = True
    parallel: bool = True
    named: bool = True


class ChatTemplate:
    """`variables`: what the template may refer to by name (bos_token, eos_token ...)."""

    def __init__(self, source: str, variables: Mapping[str, str], now: datetime = RENDER_DATE) -> None:
        self.source = source
        self.fingerprint = hashlib.sha256(source.encode()).hexdigest()[:16]
        self._variables = dict(variables)
        environment = _environment(now)
        try:
            self._reads = meta.find_undeclared_variables(environment.parse(source))
            self._compiled = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the chat template does not compile, line {error.lineno}: {error.message}") from error

    @property
    def reads_thinking(self) -> bool:
        return bool(THINKING & self._reads)

    @property
    def reads_effort(self) -> bool:
        return EFFORT in self._reads

    @cached_property
    def calls(self) -> CallStyle:
        """How it takes calls, found by trying."""
        forms: tuple[Literal["object", "text"], ...] = ("object", "text")
        styles = (CallStyle(*taken) for taken in product(forms, ("", None), (False, True)))
        style = next((found for found in styles if self._shows(found, _CALLING)), None)
        if style is None:
            return CallStyle(shown=False)
        return msgspec.structs.replace(
            style,
            beside=self._shows(style, _SAYING),
            parallel=self._shows(style, _CALLING_TWICE),
            named=self._shows(style, _CALLING, [_CALLS[0].name]),
        )

    def _shows(self, style: CallStyle, message: Message, words: Sequence[str] = ()) -> bool:
        """Whether the text, `words` and the calls of `message` are written wherever it stands, in this order and before
        their results."""
        results = [Message("tool", (Text("gamma"),), call.id) for call in message.calls]
        said = [message.text, *words, *(f"value{number}" for number in range(len(message.calls)))]
        shown = []
        for behind in ([*results, _ANSWERING, _ASKING], results, []):
            try:
                text = self.render([message_form(one, str, {}, style) for one in (_ASKING, message, *behind)])
            except TemplateError:
                continue
            begun = max(text.find("alpha"), 0)
            places = [text.find(words, begun) for words in (*said, *(["gamma"] if "gamma" in text else []))]
            shown.append(-1 not in places and places == sorted(places) and "{'path'" not in text)
        return bool(shown) and all(shown)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        switches: Switches = Switches(),
        generation: bool = False,
    ) -> str:
        """`messages` and `tools` in Hugging Face form. Raises TemplateError with what the template said."""
        try:
            return self._compiled.render(
                messages=list(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=generation,
                **self._variables,
                **self._switched(switches),
            )
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refused the conversation: {error.message}") from error
        except (TypeError, KeyError, ValueError) as error:
            # A template's own slip (an undefined concatenated, a number where it wants a string) surfaces as these.
            raise TemplateError(f"the chat template failed on the conversation: {error}") from error
        except RecursionError as error:
            raise TemplateError("calls or tools are nested too deeply for the chat template; flatten them") from error

    def _switched(self, switches: Switches) -> dict[str, Any]:
        """The variables that say `switches`. One that is not set is left undefined: the template has a default."""
        variables: dict[str, Any] = {}
        if switches.thinking is not None:
            variables |= dict.fromkeys(THINKING & self._reads, switches.thinking)
        if switches.effort and self.reads_effort:
            if not WORD.fullmatch(switches.effort):
                raise TemplateError(f"reasoning effort {switches.effort[:40]!r} is no word; say low, medium or high")
            variables[EFFORT] = switches.effort
        return variables


def load_template(directory: Path, now: datetime = RENDER_DATE) -> ChatTemplate:
    """From chat_template.jinja, or `chat_template` in tokenizer_config.json; of several, the one for tool use."""
    config = read_json(directory / "tokenizer_config.json")
    file = directory / "chat_template.jinja"
    source = file.read_text() if file.is_file() else _named(config.get("chat_template"))
    if not source:
        raise ConfigError(
            f"{directory} has no chat template: no chat_template.jinja, no `chat_template` in tokenizer_config.json. "
            "Base models have none; name the directory of the instruct model or put a template there"
        )
    return ChatTemplate(source, special_tokens(config), now)


def read_json(path: Path) -> dict[str, Any]:
    """-> the JSON object in a file of a model directory, {} when the file is not there."""
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path} is no valid JSON: {error}") from error
    return found


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """tokenizer_config.json -> {"eos_token": "<|im_end|>", ...}."""
    found = {name: value for name, value in config.items() if name.endswith("_token")}
    spelled = {name: value["content"] if isinstance(value, dict) else value for name, value in found.items()}
    return {name: value for name, value in spelled.items() if isinstance(value, str)}


def _named(templates: str | Sequence[Mapping[str, str]] | None) -> str | None:
    if templates is None or isinstance(templates, str):
        return templates
    by_name = {entry["name"]: entry["template"] for entry in templates}
    return by_name.get("tool_use") or by_name.get("default")


# --- the form a template wants ----------------------------------------------------------------------------------------


def message_form(
    message: Message, protect: Protect, tool_names: Mapping[str, str], style: CallStyle = CallStyle()
) -> dict[str, Any]:
    """`tool_names`: call id -> name, for templates that head a tool result with it."""
    if any(isinstance(part, Image | Document) for part in message.parts):
        raise TemplateError("the message holds an image or a document and this model reads text only; send it as text")
    form: dict[str, Any] = {"role": message.role, "content": protect(message.text)}
    if message.thinking:
        form["reasoning_content"] = form["thinking"] = protect(message.thinking)
    if message.calls:
        form["tool_calls"] = [_call_form(call, protect, style) for call in message.calls]
        form["content"] = form["content"] or style.silent
    if message.role == "tool":
        form["tool_call_id"] = protect(_id(message.call_id, style))
        if message.call_id in tool_names:
            form["name"] = protect(tool_names[message.call_id])
    return form


def as_said(messages: Sequence[Message], style: CallStyle) -> Sequence[Message]:
    """`messages` under the ids that the model itself gave its calls. A template that writes the id of a call alone gets
    one that says its name."""
    shown, ids = [], dict[str, str]()
    for message in messages:
        if message.calls:
            ids = {call.id: _said(call, number, style) for number, call in enumerate(message.calls)}
        shown.append(_renamed(message, ids) if message.calls or message.role == "tool" else message)
    return shown


def _said(call: ToolCall, number: int, style: CallStyle) -> str:
    if call.said or style.named or call.name in call.id:
        return call.said or call.id
    return f"functions.{call.name}:{number}"


def _renamed(message: Message, ids: Mapping[str, str]) -> Message:
    parts = (
        msgspec.structs.replace(part, id=ids.get(part.id, part.id)) if isinstance(part, ToolCall) else part
        for part in message.parts
    )
    return msgspec.structs.replace(message, parts=tuple(parts), call_id=ids.get(message.call_id, message.call_id))


def _call_form(call: ToolCall, protect: Protect, style: CallStyle) -> dict[str, Any]:
    function = {"name": protect(call.name), "arguments": _arguments(call.arguments, protect, style)}
    return {"type": "function", "id": protect(_id(call.id, style)), "function": function}


def _arguments(arguments: str, protect: Protect, style: CallStyle) -> Any:
    if style.arguments == "text":
        return protect(arguments)
    try:
        parsed = json.loads(arguments)
        return _protect_all(parsed, protect) if isinstance(parsed, dict) else protect(arguments)
    except (ValueError, RecursionError):
        # Sampled text nests as deep as it likes, and holds numbers of more digits than an int is read from.
        return protect(arguments)


def _id(call_id: str, style: CallStyle) -> str:
    if not style.short_ids or re.fullmatch("[A-Za-z0-9]{9}", call_id):
        return call_id
    return blake2b(call_id.encode(), digest_size=5).hexdigest()[:9]


_ASKING = Message("user", (Text("alpha"),))
_ANSWERING = Message("assistant", (Text("delta"),))
_CALLS = tuple(ToolCall(f"callaaaabbbbccccdddd{n}", f"look{n}", f'{{"path": "value{n}"}}') for n in range(2))
_CALLING = Message("assistant", _CALLS[:1])
_SAYING = Message("assistant", (Text("beta"), *_CALLS[:1]))
_CALLING_TWICE = Message("assistant", _CALLS)


def tool_form(tool: Tool, protect: Protect) -> dict[str, Any]:
    function = {
        "name": protect(tool.name),
        "description": protect(tool.description),
        "parameters": _protect_all(tool.parameters, protect),
    }
    return {"type": "function", "function": function}


def _protect_all(value: Any, protect: Protect) -> Any:
    if isinstance(value, str):
        return protect(value)
    if isinstance(value, Mapping):
        return {protect(key): _protect_all(item, protect) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_protect_all(item, protect) for item in value]
    return value


# --- the environment `transformers` renders in ------------------------------------------------------------------------


class GenerationTag(Extension):
    """`{% generation %}` marks what a model wrote; for rendering it is its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja declares it as an instance attribute

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment(now: datetime) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = now.strftime
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """json.dumps, but noncharacters stay as they are under `ensure_ascii`: they mark bodies (see spans)."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if ensure_ascii:
        return re.sub("[^\x00-\x7f\ufdd0-\ufdef]", lambda found: json.dumps(found.group())[1:-1], text)
    return text
