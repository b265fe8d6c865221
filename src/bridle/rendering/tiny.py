"""Makes a tiny tokenizer (byte-level BPE; by default Qwen's control tokens and ChatML) from text the project owns.

For demos and tests: it behaves like a real one where it matters (merges across the seam between scaffold and body,
non-canonical segmentations of every longer word), and needs no download.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

import orjson
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from bridle.errors import TemplateError
from bridle.rendering.chat_template import ChatTemplate

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Added, but not special: as in Qwen3."""


class Dress(NamedTuple):
    """What makes a vocabulary one of a family: its chat template and its added tokens. `special`: those that decoders
    leave out; `eos`: the one that ends a text; `ends`: further ones that end a turn; `bos`: what templates begin with.
    """

    template: str
    special: tuple[str, ...]
    plain: tuple[str, ...]
    eos: str
    ends: tuple[str, ...] = ()
    bos: str = ""


PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of Qwen2 and Qwen3."""


def own_dress() -> Dress:
    source = (resources.files("bridle.rendering") / "tiny_template.jinja").read_text()
    return Dress(source, SPECIAL, PLAIN, "<|im_end|>", ("<|endoftext|>",))


def make_tokenizer(directory: Path, vocabulary_size: int = 2048, dress: Dress | None = None) -> Path:
    """Writes tokenizer.json, tokenizer_config.json and generation_config.json into `directory`, each in one step
    -> `directory`. Takes less than a second."""
    directory.mkdir(parents=True, exist_ok=True)
    dress = dress or own_dress()
    tokenizer = _train([*_own_sources(), *_sample_conversations(dress)], vocabulary_size, dress)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": dress.template,
        "eos_token": dress.eos,
        "pad_token": dress.special[0],
        "model_max_length": 1 << 20,
        "clean_up_tokenization_spaces": False,
    } | ({"bos_token": dress.bos} if dress.bos else {})
    _write(directory / "tokenizer.json", tokenizer.to_str(pretty=False).encode())
    _write(directory / "tokenizer_config.json", orjson.dumps(config, option=orjson.OPT_INDENT_2))
    ends = [tokenizer.token_to_id(content) for content in (dress.eos, *dress.ends)]
    _write(directory / "generation_config.json", orjson.dumps({"eos_token_id": ends}))
    return directory


def _train(documents: Sequence[str], size: int, dress: Dress) -> Tokenizer:
    """Whole documents: training line by line would never learn a merge such as the double newline."""
    tokenizer: Tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(dress.special) - len(dress.plain),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in dress.special])
    tokenizer.add_tokens([AddedToken(content, special=False, normalized=False) for content in dress.plain])
    return tokenizer


def _own_sources() -> Iterator[str]:
    pending: list[Traversable] = [resources.files("bridle")]
    while pending:
        here = pending.pop()
        if here.is_dir():
            pending.extend(sorted(here.iterdir(), key=lambda entry: entry.name))
        elif here.name.endswith(".py"):
            yield here.read_text()


SAMPLE_TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command in the workspace and returns what it prints.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}

SAMPLE_COMMANDS = (
    ("ls -la", "total 12\n-rw-r--r-- 1 agent agent 431 calculator.py\ndrwxr-xr-x 2 agent agent 4096 tests\n"),
    ("cat calculator.py", "def add(a, b):\n    return a - b\n\n\ndef divide(a, b):\n    return a / b\n"),
    (
        "python3 -m unittest -q",
        "FAIL: test_add (tests.test_add.TestAdd)\n\nRan 4 tests in 0.001s\n\nFAILED (failures=1)",
    ),
    ("sed -i 's/a - b/a + b/' calculator.py", ""),
    ("git diff", "--- a/calculator.py\n+++ b/calculator.py\n@@ -1,2 +1,2 @@\n-    return a - b\n+    return a + b\n"),
)


def _sample_conversations(dress: Dress) -> Iterator[str]:
    """Rendered conversations of a coding agent, as training documents: control strings are taken out, for no encoder
    ever sees one, and what stands between two of them is one document, seams and all. None where the template takes no
    such conversation."""
    template = ChatTemplate(dress.template, {"bos_token": dress.bos, "eos_token": dress.eos})
    for count in range(1, len(SAMPLE_COMMANDS) + 1):
        messages = _sample_conversation(SAMPLE_COMMANDS[:count])
        try:
            text = template.render(messages, [SAMPLE_TOOL], generation=True)
        except TemplateError:
            return
        for control in sorted((*dress.special, *dress.plain), key=len, reverse=True):
            text = text.replace(control, "\0")
        yield from text.split("\0")


def _sample_conversation(commands: Sequence[tuple[str, str]]) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You are a coding agent. You work in /workspace.\n\nFinish with a short answer."},
        {"role": "user", "content": "\n\nThe tests fail. Please find the bug and fix it.\n\n"},
    ]
    for number, (command, output) in enumerate(commands):
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        thinking = "\nThe next step shows more.\n\n"
        call = {"type": "function", "id": f"call{number}", "function": function}
        messages.append(
            {"role": "assistant", "content": "I look.", "reasoning_content": thinking, "tool_calls": [call]}
        )
        messages.append({"role": "tool", "content": f"\n{output}\n\n", "tool_call_id": f"call{number}"})
    return messages


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)
