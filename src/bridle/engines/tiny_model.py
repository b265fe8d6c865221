"""Writes a tiny Qwen3-type model: random weights, but large enough that every token of the context shows in the output.

Weights come from numpy with a seed; no model library is needed to make one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save


class TinyModel(msgspec.Struct, frozen=True):
    """The shape. A `std` below 0.3 makes all tokens nearly as likely, and a wrong one hardly shows."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 128
    std: float = 0.3
    sharpness: float = 1.75
    """Weight of the query and key norms; attention scores spread by about its square. At 1 attention is nearly even,
    and one token of thousands is lost in the mean; far above 2 most tokens are looked at by nobody."""
    rope_theta: float = 1000.0
    """Small, so that every dimension tells neighbours apart: the order of two far tokens shows."""
    context_length: int = 131072
    seed: int = 7


def make_model(directory: Path, vocabulary_size: int, shape: TinyModel = TinyModel()) -> None:
    """Puts config.json and model.safetensors into `directory`; a tokenizer is put beside them by whoever makes it."""
    directory.mkdir(parents=True, exist_ok=True)
    config = json.dumps(_config(vocabulary_size, shape), indent=2) + "\n"
    weights = save(_weights(vocabulary_size, shape), metadata={"format": "pt"})
    for name, content in (("config.json", config.encode()), ("model.safetensors", weights)):
        # Whoever else makes it at this moment shall never see half a file.
        fresh = directory / f".{name}.{os.getpid()}"
        fresh.write_bytes(content)
        fresh.replace(directory / name)


def _config(vocabulary_size: int, shape: TinyModel) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": 1e-6,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def _weights(vocabulary_size: int, shape: TinyModel) -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(shape.seed)

    def drawn(*size: int) -> npt.NDArray[np.float32]:
        return rng.normal(0.0, shape.std, size).astype(np.float32)

    def ones(size: int, value: float = 1.0) -> npt.NDArray[np.float32]:
        return np.full(size, value, np.float32)

    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {"model.embed_tokens.weight": drawn(vocabulary_size, shape.hidden)}
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        weights |= {
            f"{layer}.input_layernorm.weight": ones(shape.hidden),
            f"{layer}.self_attn.q_proj.weight": drawn(queries, shape.hidden),
            f"{layer}.self_attn.k_proj.weight": drawn(keys, shape.hidden),
            f"{layer}.self_attn.v_proj.weight": drawn(keys, shape.hidden),
            f"{layer}.self_attn.o_proj.weight": drawn(shape.hidden, queries),
            f"{layer}.self_attn.q_norm.weight": ones(shape.head_dim, shape.sharpness),
            f"{layer}.self_attn.k_norm.weight": ones(shape.head_dim, shape.sharpness),
            f"{layer}.post_attention_layernorm.weight": ones(shape.hidden),
            f"{layer}.mlp.gate_proj.weight": drawn(shape.feed_forward, shape.hidden),
            f"{layer}.mlp.up_proj.weight": drawn(shape.feed_forward, shape.hidden),
            f"{layer}.mlp.down_proj.weight": drawn(shape.hidden, shape.feed_forward),
        }
    return weights | {"model.norm.weight": ones(shape.hidden), "lm_head.weight": drawn(vocabulary_size, shape.hidden)}
