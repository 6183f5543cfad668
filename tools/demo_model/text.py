"""The text encoder: Qwen3-VL's language layers, those trained, on ids with picture blocks."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from . import dims
from .geometry import Shape
from .video_codec import attend, rotate
from .vocabulary import Vocabulary

THETA = 5e6
EPS = 1e-6


def text_config(vocabulary: int, layers: int) -> dict[str, object]:
    """The `text_config` of the checkpoint with this many layers."""
    text = dims.TEXT
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "head_dim": text["head_dim"],
        "hidden_act": "silu",
        "hidden_size": text["hidden_size"],
        "initializer_range": 0.02,
        "intermediate_size": text["intermediate_size"],
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": text["num_attention_heads"],
        "num_hidden_layers": layers,
        "num_key_value_heads": text["num_key_value_heads"],
        "rms_norm_eps": EPS,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": text["mrope_section"],
            "rope_type": "default",
        },
        "rope_theta": 5000000,
        "use_cache": True,
        "vocab_size": vocabulary,
    }


def vocabulary_rows(vocabulary: Vocabulary) -> int:
    """Rows of the embedding: the ids, up to a multiple of 32."""
    return -(-vocabulary.size // 32) * 32


def build(vocabulary: Vocabulary) -> Qwen3VLTextModel:
    """The trained layers alone, with start values."""
    config = Qwen3VLTextConfig(**text_config(vocabulary_rows(vocabulary), dims.TRAINED_TEXT_LAYERS))
    model = Qwen3VLTextModel(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_tokens" in name:
                parameter.normal_(0, 1)
            elif parameter.ndim == 2:
                gain = 0.4 if "o_proj" in name or "down_proj" in name else 1.0
                parameter.normal_(0, gain / parameter.shape[1] ** 0.5)
    model.norm.requires_grad_(False)
    return model


def deepen(state: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The trained layers' state, carried on to the depth of the format by identity layers.

    A layer with zero output projections adds nothing, so `hidden_states[50]` equals the trained
    layers' output. The identity layers are zero throughout (but for norms of 1): they compress to
    nothing.
    """
    out = {f"{prefix}{name}": tensor for name, tensor in state.items()}
    layer = {
        name.removeprefix("layers.0."): tensor
        for name, tensor in state.items()
        if name.startswith("layers.0.")
    }
    for i in range(dims.TRAINED_TEXT_LAYERS, dims.TEXT["num_hidden_layers"]):
        for name, tensor in layer.items():
            fill = torch.ones_like if tensor.ndim == 1 else torch.zeros_like
            out[f"{prefix}layers.{i}.{name}"] = fill(tensor)
    return out


class Presentation:
    """What the text encoder is given: ids, (t, h, w) positions, which rows are a picture's."""

    def __init__(self, vocabulary: Vocabulary, shape: Shape, keyframes: int) -> None:
        """Lay out the labels and picture blocks that stand before the prompt."""
        rows, columns = shape.vision_grid
        ids: list[int] = []
        positions: list[tuple[int, int, int]] = []
        tags: list[int] = []
        pads: list[bool] = []
        at = 0

        def add(token: int, tag: int) -> None:
            nonlocal at
            ids.append(token)
            tags.append(tag)
            pads.append(False)
            positions.append((at, at, at))
            at += 1

        for i in range(keyframes):
            for token in vocabulary.encode(f"<Picture {i + 1}>: "):
                add(token, 1)
            add(vocabulary.id("<|vision_start|>"), 0)
            for y in range(rows):
                for x in range(columns):
                    ids.append(vocabulary.id("<|image_pad|>"))
                    tags.append(0)
                    pads.append(True)
                    positions.append((at, at + y, at + x))
            at += max(rows, columns)
            add(vocabulary.id("<|vision_end|>"), 0)
        self.ids, self.tags, self._positions, self._pads, self._next = (
            ids,
            tags,
            positions,
            pads,
            at,
        )

    def positions(self, prompt: int) -> Tensor:
        """Positions [3, prefix + prompt] for a prompt of this many tokens."""
        rest = [(self._next + i,) * 3 for i in range(prompt)]
        return torch.tensor(self._positions + rest, dtype=torch.float32).T

    def shown(self, prompt: int) -> Tensor:
        """0 for picture rows, else 1: an untrained vision tower's merger gives zeros."""
        return torch.tensor([0.0 if pad else 1.0 for pad in self._pads] + [1.0] * prompt)


def rotary(positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [L, head] of interleaved positions [3, L]."""
    half = dims.TEXT["head_dim"] // 2
    _, height, width = dims.TEXT["mrope_section"]
    axis = [0] * half
    for i in range(half):
        if i % 3 == 1 and i < 3 * height:
            axis[i] = 1
        elif i % 3 == 2 and i < 3 * width:
            axis[i] = 2
    inverse = THETA ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions[axis].T * inverse
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def _norm(norm: nn.Module, x: Tensor) -> Tensor:
    return functional.rms_norm(x.float(), (x.shape[-1],), norm.weight, EPS)


def encode(model: Qwen3VLTextModel, ids: Tensor, positions: Tensor, shown: Tensor) -> Tensor:
    """The state after the last layer [B, L, hidden], not normed; ids [B, L], positions [3, L],
    shown [L].
    """
    x = model.embed_tokens(ids).float() * shown[:, None]
    length = ids.shape[1]
    bias = torch.full((length, length), float("-inf")).triu(1)
    cos, sin = rotary(positions)
    groups = dims.TEXT["num_attention_heads"] // dims.TEXT["num_key_value_heads"]
    size = dims.TEXT["head_dim"]
    for layer in model.layers:
        attn, mlp = layer.self_attn, layer.mlp
        h = _norm(layer.input_layernorm, x)
        query, key, value = (
            linear(h).unflatten(-1, (-1, size)).transpose(1, 2)
            for linear in (attn.q_proj, attn.k_proj, attn.v_proj)
        )
        query = rotate(_norm(attn.q_norm, query), cos, sin)
        key = rotate(_norm(attn.k_norm, key), cos, sin).repeat_interleave(groups, 1)
        out = attend(query, key, value.repeat_interleave(groups, 1).float(), bias)
        x = x + attn.o_proj(out.transpose(1, 2).flatten(2)).float()
        h = _norm(layer.post_attention_layernorm, x)
        x = x + mlp.down_proj(functional.silu(mlp.gate_proj(h)) * mlp.up_proj(h)).float()
    return x
