"""diffusers' transformer over a batch in which every item has times of its own."""

from dataclasses import dataclass

import torch
from diffusers import MiniMaxH3Transformer3DModel
from torch import Tensor, nn
from torch.nn import functional

from . import dims
from .geometry import Shape, media_positions
from .video_codec import attend, rotate

CONDITION_TIME = 0.999
# Kinds of rows: (which of the item's times, modality).
VIDEO, AUDIO, CONDITION = 0, 1, 2
TEXT_ROWS, PICTURE_ROWS, CONDITION_ROWS, AUDIO_ROWS, VIDEO_ROWS = range(5)
KINDS = ((VIDEO, 1), (VIDEO, 0), (CONDITION, 0), (AUDIO, 2), (VIDEO, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """One packed layout: rotary cos, sin [S, rotated], one-hot kinds [S, 5], counts of rows."""

    cos: Tensor
    sin: Tensor
    kinds: Tensor
    text: int
    conditions: int
    audio: int
    video: int


def positions(shape: Shape, tags: list[int], keyframes: tuple[str, ...]) -> Tensor:
    """(t, h, w) of every packed row, float64 [S, 3]."""
    media = torch.from_numpy(media_positions(shape, keyframes))
    media[:, 0] += len(tags)
    text = torch.zeros(len(tags), 3, dtype=torch.float64)
    text[:, 0] = torch.arange(len(tags))
    return torch.cat([text, media])


def pack(
    model: MiniMaxH3Transformer3DModel, shape: Shape, tags: list[int], keyframes: tuple[str, ...]
) -> Packing:
    """The layout for text rows with these tags (1 text, 0 picture block) before the media rows."""
    cos, sin = model.rope(positions(shape, tags, keyframes))
    conditions = shape.rows_a_frame * len(keyframes)
    audio, video = 2 * shape.audio, shape.rows_a_frame * shape.latent[0]
    kinds = [TEXT_ROWS if tag == 1 else PICTURE_ROWS for tag in tags]
    kinds += [CONDITION_ROWS] * conditions + [AUDIO_ROWS] * audio + [VIDEO_ROWS] * video
    return Packing(
        cos=cos,
        sin=sin,
        kinds=functional.one_hot(torch.tensor(kinds), len(KINDS)).float(),
        text=len(tags),
        conditions=conditions,
        audio=audio,
        video=video,
    )


def build() -> MiniMaxH3Transformer3DModel:
    """A transformer with start values: quiet modulations, open gates."""
    model = MiniMaxH3Transformer3DModel(**dims.diffusers_transformer())
    size = dims.TRANSFORMER["hidden_size"]
    with torch.no_grad():
        for block in model.transformer_blocks:
            linear = block.adaln_proj.linear
            linear.weight.mul_(0.1)
            linear.bias.zero_()
            linear.bias.view(3, 6, size)[:, [2, 5]] = 1.0
        model.norm_out.linear.weight.mul_(0.1)
        model.norm_out.linear.bias.zero_()
        for head in (model.proj_out, model.audio_proj_out):
            head.weight.mul_(0.1)
            head.bias.zero_()
        for name, parameter in model.named_parameters():
            if name.endswith((".to_out.0.weight", ".ff.net.2.weight")):
                parameter.mul_(0.5)
    return model


def _norm(norm: nn.Module, x: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), norm.weight.to(x.dtype), norm.eps)


def _attention(attn: nn.Module, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    query, key, value = (
        linear(x).unflatten(-1, (attn.heads, -1)).transpose(1, 2)
        for linear in (attn.to_q, attn.to_k, attn.to_v)
    )
    query, key = _norm(attn.norm_q, query), _norm(attn.norm_k, key)
    if cos is not None and sin is not None:
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    return attn.to_out[0](attend(query, key, value).transpose(1, 2).flatten(2))


def refine(model: MiniMaxH3Transformer3DModel, text: Tensor) -> Tensor:
    """Text states [B, L, text] -> refined rows [B, L, hidden]."""
    x = model.context_embedder(text)
    for block in model.token_refiner.refiner_blocks:
        x = x + _attention(block.attn, _norm(block.norm1, x), None, None)
        x = x + block.ff(_norm(block.norm2, x))
    return _norm(model.token_refiner.final_norm, x)


def forward(
    model: MiniMaxH3Transformer3DModel,
    packing: Packing,
    text: Tensor,
    media: tuple[Tensor, Tensor],
    times: Tensor,
) -> tuple[Tensor, Tensor]:
    """Velocities (video [B, Nv, 4C], audio [B, Na, C]) of the target rows.

    text: refined rows [B, L, hidden]; media: (picture, sound), condition rows then target rows
    [B, Nc + Nv, 4C] and audio rows [B, Na, C]; times [B, 3]: of video, audio and conditions.
    """
    video, audio = media
    rows = model.proj_in(video)
    parts = [text, rows[:, : packing.conditions], model.audio_proj_in(audio)]
    x = torch.cat([part.to(text.dtype) for part in [*parts, rows[:, packing.conditions :]]], 1)
    batch, _, hidden = x.shape
    sinusoid = model.time_proj(times.flatten())
    embedding = functional.silu(model.time_embedder(sinusoid)).view(batch, 3, -1)
    kinds, cos, sin = packing.kinds.to(x.dtype), packing.cos.to(x.dtype), packing.sin.to(x.dtype)
    which, modality = zip(*KINDS, strict=True)
    for block in model.transformer_blocks:
        table = block.adaln_proj.linear(embedding).view(batch, 3, 3, 6 * hidden)
        table = table[:, which, modality]
        shift, scale, gate, shift2, scale2, gate2 = (kinds @ table.to(x.dtype)).chunk(6, dim=-1)
        h = _norm(block.norm1, x) * (1 + scale) + shift
        x = x + gate * _attention(block.attn, h, cos, sin)
        h = _norm(block.norm2, x) * (1 + scale2) + shift2
        x = x + gate2 * block.ff(h)
    first = packing.text + packing.conditions
    shift, scale = model.norm_out.linear(embedding).chunk(2, dim=-1)
    y = _norm(model.norm_out.norm, x[:, first:])
    sound, picture = y[:, : packing.audio], y[:, packing.audio :]
    picture = picture * (1 + scale[:, :1]) + shift[:, :1]
    sound = sound * (1 + scale[:, 1:2]) + shift[:, 1:2]
    return model.proj_out(picture).float(), model.audio_proj_out(sound).float()
