"""The video VAE of diffusers, run fast: same modules, same numbers, less work.

Three things make the encoder cheap to train at 32 channels. The blocks of the first two levels are
identities (their second convolution is zero), so they are skipped; the convolutions before the
first temporal stride only use their last temporal tap, so they run in two dimensions; and the
clip's second part of five frames is encoded without the padding frames whose latents would be
dropped. `tests` in `check.py` compare with the reference.
"""

import math
from typing import Any

import torch
from diffusers import AutoencoderKLMiniMaxH3
from torch import Tensor, nn
from torch.nn import functional

from . import dims

PIXEL_MEAN = (0.485, 0.456, 0.406)
PIXEL_STD = (0.229, 0.224, 0.225)
CLIP, TAIL = 17, 5  # frames of a full clip and of the part that closes a video
SKIPPED_LEVELS = (0, 1)


def normalise(pixels: Tensor) -> Tensor:
    """RGB [..., 3] in [0, 255] -> ImageNet-normalised, same layout."""
    mean, std = (torch.tensor(values) for values in (PIXEL_MEAN, PIXEL_STD))
    return (pixels / 255 - mean) / std


def build(
    mean: list[float] | None = None, std: list[float] | None = None
) -> AutoencoderKLMiniMaxH3:
    """A video VAE with the start values that train (see `initialise`)."""
    vae = AutoencoderKLMiniMaxH3(**dims.diffusers_video_vae(mean, std))
    initialise(vae)
    return vae


@torch.no_grad()
def initialise(vae: AutoencoderKLMiniMaxH3) -> None:
    """Variance-preserving convolutions, quiet residual branches, a posterior of fixed width."""
    for name, module in vae.encoder.named_modules():
        if not isinstance(module, nn.Conv3d):
            continue
        flat = name.startswith(("conv_in", "down_blocks.0.", "down_blocks.1.resnets"))
        fan_in = module.in_channels * math.prod(module.kernel_size) / (3 if flat else 1)
        gain = 0.3 if name.endswith("conv2") else 1.0
        module.weight.normal_(0, gain / math.sqrt(fan_in))
        module.bias.zero_()
        if flat and module.kernel_size[0] == 3:
            module.weight[:, :, :2] = 0
    for level in SKIPPED_LEVELS:
        for block in vae.encoder.down_blocks[level].resnets:
            block.conv2.weight.zero_()
    # The last norm takes statistics over pairs of channels: a constant beside each signal keeps its
    # level.
    vae.encoder.down_blocks[-1].downsamplers[0].conv.bias[1::2] = 2.0
    channels = dims.LATENT_CHANNELS
    nn.init.dirac_(vae.quant_conv.weight)
    vae.quant_conv.weight[channels:] = 0
    vae.quant_conv.bias.zero_()
    vae.quant_conv.bias[channels:] = 2 * math.log(dims.POSTERIOR_STD)
    nn.init.dirac_(vae.post_quant_conv.weight)
    vae.post_quant_conv.bias.zero_()
    decoder = vae.decoder
    decoder.register_tokens.normal_(0, 0.5)
    for block in decoder.transformer_blocks:
        block.scale1.fill_(0.5)
        block.scale2.fill_(0.5)
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0, 1 / math.sqrt(module.in_features))
            module.bias.zero_()
            if name == "proj_out":
                module.weight.mul_(0.3)


def _frame_norm(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    """Group norm of each frame by itself, then SiLU; x: [B, C, T, H, W]."""
    batch, channels, frames, height, width = x.shape
    groups = norm.num_groups
    grouped = x.float().view(batch, groups, channels // groups, frames, height, width)
    variance, mean = torch.var_mean(grouped, dim=(2, 4, 5), keepdim=True, correction=0)
    grouped = (grouped - mean) * torch.rsqrt(variance + norm.eps)
    flat = grouped.view_as(x) * norm.weight.view(1, -1, 1, 1, 1) + norm.bias.view(1, -1, 1, 1, 1)
    return functional.silu(flat)


def _conv(conv: nn.Conv3d, x: Tensor) -> Tensor:
    """Causal 3x3x3 convolution with reflected borders."""
    x = functional.pad(x, (1, 1, 1, 1, 0, 0), mode="reflect")
    return functional.conv3d(functional.pad(x, (0, 0, 0, 0, 2, 0)), conv.weight, conv.bias)


def _down(conv: nn.Conv3d, x: Tensor) -> Tensor:
    x = functional.pad(x, (0, 1, 0, 1, 0, 0), mode="reflect")
    return functional.conv3d(
        functional.pad(x, (0, 0, 0, 0, 2, 0)), conv.weight, conv.bias, stride=conv.stride
    )


class _ReflectedEdge(torch.autograd.Function):
    """Overwrites the last row and column with the ones two before: a reflection, in place.

    The convolution before computes one row and column too many for this. Padding afterwards instead
    costs a third of the whole training step in copies.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        x[..., -1] = x[..., -3]
        x[..., -1, :] = x[..., -3, :]
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[..., -3, :] += gradient[..., -1, :]
        gradient[..., -1, :] = 0
        gradient[..., -3] += gradient[..., -1]
        gradient[..., -1] = 0
        return gradient


def _spatial(vae: AutoencoderKLMiniMaxH3, frames: Tensor) -> Tensor:
    """The part before the first temporal stride: frames [N, 3, H, W] -> [N, 32, H/2, W/2]."""
    encoder = vae.encoder
    x = functional.pad(frames, (1, 2, 1, 2), mode="reflect").contiguous(
        memory_format=torch.channels_last
    )
    x = functional.conv2d(x, encoder.conv_in.weight[:, :, 2], encoder.conv_in.bias)
    down = encoder.down_blocks[0].downsamplers[0].conv
    x = _ReflectedEdge.apply(x)
    return functional.conv2d(x, down.weight[:, :, 2], down.bias, stride=2)


def _temporal(vae: AutoencoderKLMiniMaxH3, x: Tensor) -> Tensor:
    """The rest of the encoder on one clip: [B, 32, T, H/2, W/2] -> means [B, C, ceil(T/4), H/16,
    W/16].
    """
    encoder = vae.encoder
    for level, block in enumerate(encoder.down_blocks):
        if level not in SKIPPED_LEVELS:
            for resnet in block.resnets:
                h = _conv(resnet.conv1, _frame_norm(resnet.norm1, x))
                h = _conv(resnet.conv2, _frame_norm(resnet.norm2, h))
                shortcut = resnet.conv_shortcut
                x = (
                    x if shortcut is None else functional.conv3d(x, shortcut.weight, shortcut.bias)
                ) + h
        if level > 0:
            x = _down(block.downsamplers[0].conv, x)
    x = _conv(encoder.conv_out, _frame_norm(encoder.norm_out, x))
    channels = dims.LATENT_CHANNELS
    return functional.conv3d(x, vae.quant_conv.weight[:channels], vae.quant_conv.bias[:channels])


def encode(vae: AutoencoderKLMiniMaxH3, video: Tensor) -> Tensor:
    """Means [B, C, T, H/16, W/16] of normalised clips [B, F, H, W, 3]; F is 1 or 17k + 5."""
    batch, frames = video.shape[:2]
    x = _spatial(vae, video.flatten(0, 1).permute(0, 3, 1, 2))
    x = x.unflatten(0, (batch, frames)).transpose(1, 2)
    parts = [1] if frames == 1 else [CLIP] * (frames // CLIP) + [TAIL]
    return torch.cat([_temporal(vae, part) for part in x.split(parts, dim=2)], dim=2).float()


def decode(vae: AutoencoderKLMiniMaxH3, latents: Tensor) -> Tensor:
    """One decoder call: latents [B, C, T, h, w], restored -> normalised [B, 3, 4T, 16h, 16w]."""
    decoder = vae.decoder
    batch, _, frames, height, width = latents.shape
    x = functional.conv3d(latents, vae.post_quant_conv.weight, vae.post_quant_conv.bias)
    x = decoder.proj_in(x.permute(0, 2, 3, 4, 1).reshape(batch, frames * height * width, -1))
    tokens = x.shape[1]
    x = torch.cat(
        [x, decoder.register_tokens.expand(batch, -1, -1).to(x.dtype), torch.zeros_like(x[:, :1])],
        dim=1,
    )
    cos, sin = decoder_rotary(decoder, frames, height, width)
    for block in decoder.transformer_blocks:
        x = x + _attention(block.attn, block.norm1(x.float()), cos, sin) * block.scale1
        x = x + block.ff(block.norm2(x.float())) * block.scale2
    x = decoder.proj_out(decoder.norm_out(x.float()))[:, :tokens]
    x = x.view(batch, frames, height, width, 3, 4, 16, 16).permute(0, 4, 1, 5, 2, 6, 3, 7)
    return x.reshape(batch, 3, 4 * frames, 16 * height, 16 * width).float()


def decoder_rotary(
    decoder: nn.Module, frames: int, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """cos and sin [tokens + 5, rotated channels] of the decoder's positions."""
    axes = [2 * (torch.arange(0.5, size) / size) - 1 for size in (frames, height, width)]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 2)
    places = torch.cat([places, torch.zeros(decoder.num_register_tokens + 1, 3)])
    cos, sin = decoder.rope(places[None])
    return cos[0, :, 0], sin[0, :, 0]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotation of the leading R channels; x [..., S, D], cos and sin [..., S, R]."""
    size = cos.shape[-1]
    turned, kept = x[..., :size], x[..., size:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos.to(x.dtype) + torch.cat([-second, first], -1) * sin.to(x.dtype)
    return torch.cat([turned, kept], dim=-1)


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k / sqrt(d)) v, written out: in bf16 on a CPU 3x faster than the fused call."""
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias
    return torch.softmax(scores, dim=-1).to(value.dtype) @ value


def _attention(attn: nn.Module, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    query, key, value = (
        linear(x).unflatten(2, (attn.heads, -1)).transpose(1, 2)
        for linear in (attn.to_q, attn.to_k, attn.to_v)
    )
    dtype = query.dtype
    query, key = attn.norm_q(query.float()).to(dtype), attn.norm_k(key.float()).to(dtype)
    out = attend(rotate(query, cos, sin), rotate(key, cos, sin), value)
    return attn.to_out[0](out.transpose(1, 2).flatten(2))


def kept_frames(decoded: Tensor) -> Tensor:
    """The 22 frames of seven decoded latents [B, 3, 28, H, W]: each half drops three."""
    return torch.cat([decoded[:, :, 3:20], decoded[:, :, 23:28]], dim=2)
