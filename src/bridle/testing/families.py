"""Model families to try renderers on: the chat templates that the `trl` wheel ships, over small trained vocabularies.

A template alone does not say which of its strings are tokens; the tables here do, as the families' own tokenizers have
them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

from bridle.errors import ConfigError
from bridle.rendering.tiny import Dress, make_tokenizer


class Tokens(NamedTuple):
    """The added tokens of a family; the fields as in `Dress`."""

    special: tuple[str, ...]
    plain: tuple[str, ...]
    eos: str
    ends: tuple[str, ...] = ()
    bos: str = ""


_TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

FAMILIES: dict[str, Tokens] = {
    "qwen": Tokens(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *_VISION), _TOOL_TAGS, "<|im_end|>", ("<|endoftext|>",)
    ),
    "glm": Tokens(
        (
            "<|endoftext|>",
            *("[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
            *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "/nothink"),
        ),
        (*_TOOL_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        "<|endoftext|>",
        ("<|user|>", "<|observation|>"),
    ),
    "deepseek": Tokens(
        (
            *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"),
            *(
                "<｜User｜>",
                "<｜Assistant｜>",
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁calls▁end｜>",
                "<｜tool▁call▁begin｜>",
            ),
            *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
            *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        ),
        ("<think>", "</think>"),
        "<｜end▁of▁sentence｜>",
        bos="<｜begin▁of▁sentence｜>",
    ),
    "deepseek_dsml": Tokens(
        (
            *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>"),
            *("<｜latest_reminder｜>", "<｜action｜>", "<｜query｜>", "<｜title｜>"),
        ),
        ("<think>", "</think>", "｜DSML｜"),
        "<｜end▁of▁sentence｜>",
        bos="<｜begin▁of▁sentence｜>",
    ),
    "kimi": Tokens(
        (
            *("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
            *("<|start_header_id|>", "<|end_header_id|>", "[EOT]", "[UNK]", "[PAD]"),
        ),
        (
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
            *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"),
        ),
        "[EOS]",
        ("<|im_end|>",),
        bos="[BOS]",
    ),
    "mistral": Tokens(
        (
            *("<unk>", "<s>", "</s>", "<pad>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]"),
            *("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[THINK]", "[/THINK]", "[IMG]", "[PREFIX]", "[SUFFIX]"),
        ),
        (),
        "</s>",
        bos="<s>",
    ),
    "llama": Tokens(
        (
            *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
            *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
        ),
        (),
        "<|eot_id|>",
        ("<|end_of_text|>", "<|eom_id|>"),
        bos="<|begin_of_text|>",
    ),
    "llama4": Tokens(
        (
            *("<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|header_end|>", "<|eot|>", "<|eom|>"),
            *("<|python_start|>", "<|python_end|>", "<|image|>", "<|patch|>"),
        ),
        (),
        "<|eot|>",
        ("<|end_of_text|>", "<|eom|>"),
        bos="<|begin_of_text|>",
    ),
    "nemotron_v2": Tokens(
        ("<unk>", "<s>", "</s>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"),
        (
            *("<TOOLCALL>", "</TOOLCALL>", "<AVAILABLE_TOOLS>", "</AVAILABLE_TOOLS>"),
            *("<TOOL_RESPONSE>", "</TOOL_RESPONSE>", "<think>", "</think>"),
        ),
        "<SPECIAL_12>",
        ("</s>",),
        bos="<s>",
    ),
    "nemotron": Tokens(
        ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"), _TOOL_TAGS, "<|im_end|>", ("</s>",), bos="<s>"
    ),
    "gemma": Tokens(
        (
            *("<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"),
            *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
            *(
                "<|image>",
                "<image|>",
                "<|image|>",
                "<|audio|>",
                "<|video|>",
                '<|"|>',
                "<start_of_turn>",
                "<end_of_turn>",
                "<start_of_image>",
            ),
        ),
        (),
        "<eos>",
        ("<turn|>", "<|tool_response>", "<end_of_turn>"),
        bos="<bos>",
    ),
    "minimax": Tokens(
        ("]!p~[", "]!d~[", "]~!b[", "]~b]", "[e~[", "]<]image[>[", "<code_interpreter>"),
        ("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
        "[e~[",
    ),
    "gptoss": Tokens(
        (
            *("<|startoftext|>", "<|endoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>"),
            *("<|constrain|>", "<|return|>", "<|call|>"),
        ),
        (),
        "<|return|>",
        ("<|call|>", "<|endoftext|>"),
        bos="<|startoftext|>",
    ),
    "lfm": Tokens(
        (
            *("<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"),
            *("<|tool_list_start|>", "<|tool_list_end|>", "<|tool_call_start|>", "<|tool_call_end|>"),
            *("<|tool_response_start|>", "<|tool_response_end|>"),
        ),
        ("<think>", "</think>", "<image>"),
        "<|im_end|>",
        bos="<|startoftext|>",
    ),
    "cohere": Tokens(
        (
            *("<PAD>", "<BOS_TOKEN>", "<EOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            *("<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        (),
        "<|END_OF_TURN_TOKEN|>",
        bos="<BOS_TOKEN>",
    ),
    "phi": Tokens(
        ("<|endoftext|>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        (),
        "<|endoftext|>",
        ("<|end|>",),
        bos="<s>",
    ),
    "muse": Tokens(
        ("<|pad|>", "<|startoftext|>", "<|start|>", "<|message|>", "<|eot|>", "<|eom|>", "<|patch|>", "<|video|>"),
        (),
        "<|eot|>",
        ("<|eom|>",),
        bos="<|startoftext|>",
    ),
}

_BY_BEGINNING = {
    "qwen": "qwen",
    "glm": "glm",
    "deepseek_dsml": "deepseek_dsml",
    "deepseek": "deepseek",
    "kimi": "kimi",
    "mistral": "mistral",
    "llama4": "llama4",
    "llama": "llama",
    "nemotron_v1": "llama",
    "nemotron_v2": "nemotron_v2",
    "nemotron": "nemotron",
    "gemma": "gemma",
    "diffusion_gemma": "gemma",
    "minimax": "minimax",
    "gptoss": "gptoss",
    "lfm": "lfm",
    "cohere": "cohere",
    "phi": "phi",
    "muse": "muse",
}
"""How the names of templates begin, and whose vocabulary they are for."""


def templates() -> dict[str, Path]:
    """The chat templates of language models in the installed `trl` wheel, by name; the package itself is not imported.
    Left out: those for training, which are the same with marks, and those of families whose tokens are not known."""
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        raise ConfigError("trl is not installed: its wheel holds the chat templates; pip install 'bridle[test]'")
    files = sorted((Path(found.origin).parent / "chat_templates").glob("*.jinja"))
    return {file.stem: file for file in files if not file.stem.endswith("_training") and family_of(file.stem)}


def family_of(name: str) -> str:
    """ "" where none is known."""
    return next((family for beginning, family in _BY_BEGINNING.items() if name.startswith(beginning)), "")


def make_model(directory: Path, family: str, template: str) -> Path:
    """A model directory without weights: `template` over a trained vocabulary with the tokens of `family`."""
    return make_tokenizer(directory, dress=Dress(template, *FAMILIES[family]))
