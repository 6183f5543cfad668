"""The audio VAE of diffusers, run fast: residual branches that are kept at zero are not computed.

The layout asks for kernels 3, 7, 11 with dilations 1, 3, 5 in the vocoder and for three units a
level in the encoder. This world's sounds need kernel 7 with dilations 1 and 3, and one unit: the
rest is stored as zeros.
"""

import math

import torch
from diffusers import AutoencoderKLMiniMaxH3Audio
from torch import Tensor, nn

from . import dims

KERNELS = 3  # residual blocks of a stage; block ACTIVE is trained
ACTIVE, ACTIVE_DILATIONS = 1, 2
UNITS = 1  # trained residual units of an encoder level


def build(
    mean: list[float] | None = None, std: list[float] | None = None
) -> AutoencoderKLMiniMaxH3Audio:
    """An audio VAE with the start values that train."""
    vae = AutoencoderKLMiniMaxH3Audio(**dims.diffusers_audio_vae(mean, std))
    initialise(vae)
    return vae


@torch.no_grad()
def initialise(vae: AutoencoderKLMiniMaxH3Audio) -> None:
    """Variance-preserving convolutions, quiet residual ends, zeros where nothing is trained."""
    for name, module in vae.named_modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d) and hasattr(module, "weight_v"):
            fan_in = module.in_channels * module.kernel_size[0]
            std = 1 / math.sqrt(fan_in)
            if isinstance(module, nn.ConvTranspose1d):
                std = math.sqrt(module.stride[0] / fan_in)
            if ".convs2." in name or name.endswith(".block.3"):
                std *= 0.3
            module.weight_v.normal_(0, std)
            module.weight_g.copy_(module.weight_v.flatten(1).norm(dim=1).view_as(module.weight_g))
            if module.bias is not None:
                module.bias.zero_()
    for unit in unused(vae):
        unit.weight_g.zero_()
        unit.bias.zero_()
        unit.requires_grad_(False)
    vae.mean_proj.weight.mul_(2)
    vae.logs_proj.weight.mul_(0.1)
    vae.logs_proj.bias.fill_(-2.5)


def unused(vae: AutoencoderKLMiniMaxH3Audio) -> list[nn.Module]:
    """The last convolutions of the residual branches that stay zero."""
    found = []
    for i, block in enumerate(vae.decoder.resblocks):
        keep = ACTIVE_DILATIONS if i % KERNELS == ACTIVE else 0
        found += list(block.convs2)[keep:]
    for level in vae.encoder.block[1:-2]:
        found += [unit.block[3] for unit in level.block[UNITS:3]]
    return found


def encode(vae: AutoencoderKLMiniMaxH3Audio, wave: Tensor) -> tuple[Tensor, Tensor]:
    """Posterior mean and log deviation [B, C, T] of mono sound [B, 1, 800 T]."""
    layers = vae.encoder.block
    x = layers[0](wave)
    for level in layers[1:-2]:
        for unit in level.block[:UNITS]:
            x = unit(x)
        x = level.block[4](level.block[3](x))
    x = layers[-1](layers[-2](x))
    x = vae.pre_block(x.transpose(1, 2)).transpose(1, 2)
    return vae.mean_proj(x), vae.logs_proj(x)


def decode(vae: AutoencoderKLMiniMaxH3Audio, latents: Tensor, *, clamp: bool = True) -> Tensor:
    """Sound [B, 1, 800 T] of latents [B, C, T]."""
    decoder = vae.decoder
    x = decoder.conv_pre(vae.dec_in_proj(latents))
    for i, up in enumerate(decoder.ups):
        x = up[0](x)
        block = decoder.resblocks[KERNELS * i + ACTIVE]
        y = x
        for j in range(ACTIVE_DILATIONS):
            branch = block.convs1[j](block.activations[2 * j](y))
            y = y + block.convs2[j](block.activations[2 * j + 1](branch))
        x = (y + (KERNELS - 1) * x) / KERNELS
    x = decoder.conv_post(decoder.activation_post(x))
    return x.clamp(-1, 1) if clamp else x
