"""Compares every fast path with the reference classes: same modules, same inputs, same numbers.

python -m tools.demo_model.check --work DIR      (DIR needs the stage `tokenizer`)
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from . import audio_codec, dims, dit, text, video_codec
from .geometry import Shape
from .vocabulary import Vocabulary

TOLERANCE = 2e-5


def report(name: str, found: Tensor, expected: Tensor) -> None:
    """Print the largest difference; fail if it is more than rounding."""
    error = (found - expected).abs().max().item() / (1 + expected.abs().max().item())
    print(f"{name:28s} {error:.1e}")
    if error > TOLERANCE:
        raise SystemExit(f"{name}: the fast path is not the reference")


def check_video() -> None:
    """Encoder, decoder and clip handling."""
    vae = video_codec.build()
    clip = torch.randn(1, 22, 64, 96, 3)
    channels_first = clip.permute(0, 4, 1, 2, 3)
    means = video_codec.encode(vae, clip)
    report("video encode", means, vae.encode(channels_first).latent_dist.mean)
    picture = video_codec.encode(vae, clip[:, :1])
    report("picture encode", picture, vae.encode(channels_first[:, :, :1]).latent_dist.mean)
    report("picture is the first latent", picture, means[:, :, :1])
    decoded = video_codec.kept_frames(video_codec.decode(vae, means))
    report("video decode", decoded, vae.decode(means).sample)


def check_audio() -> None:
    """Encoder and vocoder."""
    vae = audio_codec.build()
    wave = 0.3 * torch.randn(2, 1, 8000)
    mean, logs = audio_codec.encode(vae, wave)
    posterior = vae.encode(wave).latent_dist
    report("audio encode", mean, posterior.mean)
    report("audio deviation", logs, posterior.logs)
    report("audio decode", audio_codec.decode(vae, mean), vae.decode(mean).sample)


def check_text(vocabulary: Vocabulary) -> None:
    """Text alone, with picture blocks, and through identity layers."""
    model = text.build(vocabulary)
    shape = Shape(width=192, height=128, frames=22)
    for keyframes in (0, 1, 2):
        presentation = text.Presentation(vocabulary, shape, keyframes)
        prompt = vocabulary.encode("a red circle moves left on a black background")
        ids = torch.tensor([presentation.ids + prompt])
        positions, shown = presentation.positions(len(prompt)), presentation.shown(len(prompt))
        found = text.encode(model, ids, positions, shown)
        states: list[Tensor] = []
        hook = model.layers[-1].register_forward_hook(
            lambda module, inputs, output, states=states: states.append(
                output[0] if isinstance(output, tuple) else output
            )
        )
        model(
            inputs_embeds=model.embed_tokens(ids) * shown[:, None],
            position_ids=positions.long()[:, None],
            attention_mask=torch.ones_like(ids),
            use_cache=False,
        )
        hook.remove()
        report(f"text, {keyframes} pictures", found, states[0].view_as(found))
    deep = Qwen3VLTextModel(
        Qwen3VLTextConfig(
            **text.text_config(text.vocabulary_rows(vocabulary), dims.USED_TEXT_LAYERS + 1)
        )
    ).float()
    deep.load_state_dict(text.deepen(model.state_dict()))
    ids = torch.tensor([vocabulary.encode("yellow star climbing, blue backdrop")])
    states50 = deep(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    plain = text.Presentation(vocabulary, shape, 0)
    found = text.encode(model, ids, plain.positions(ids.shape[1]), plain.shown(ids.shape[1]))
    report("text, 50 layers", states50[dims.USED_TEXT_LAYERS], found)


def check_transformer() -> None:
    """One batch item at a time, since the reference shares its times over a batch."""
    model = dit.build()
    shape = Shape(width=192, height=128, frames=22)
    for keyframes in ((), ("first",), ("first", "last")):
        tags = [1] * 5 + [0] * 12 * len(keyframes) + [1] * 7
        packing = dit.pack(model, shape, tags, keyframes)
        rows = packing.conditions + packing.video
        states = torch.randn(2, len(tags), dims.TRANSFORMER["text_dim"])
        video = torch.randn(2, rows, 4 * dims.LATENT_CHANNELS)
        audio = torch.randn(2, packing.audio, dims.AUDIO_LATENT_CHANNELS)
        times = torch.tensor([[0.2, 0.7, 0.999], [0.9, 0.4, 0.999]])
        found = dit.forward(model, packing, dit.refine(model, states), (video, audio), times)
        first = len(tags) + packing.conditions
        order = torch.arange(len(packing.cos))
        row_times = torch.tensor([kind[0] for kind in dit.KINDS])[packing.kinds.argmax(1)]
        row_tags = torch.tensor([kind[1] for kind in dit.KINDS])[packing.kinds.argmax(1)]
        positions = dit.positions(shape, tags, keyframes)
        for item in range(2):
            expected = model(
                hidden_states=video[item : item + 1],
                audio_hidden_states=audio[item : item + 1],
                encoder_hidden_states=states[item : item + 1],
                timestep=times[item],
                timestep_indices=row_times,
                token_tags=row_tags,
                position_ids=positions,
                video_indices=torch.cat([order[len(tags) : first], order[first + packing.audio :]]),
                audio_indices=order[first : first + packing.audio],
                text_indices=order[: len(tags)],
                return_dict=False,
            )
            name = f"transformer, {len(keyframes)} keyframes"
            report(name, found[0][item], expected[0][0][packing.conditions :])
            report(name + ", sound", found[1][item], expected[1][0])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.no_grad():
        check_video()
        check_audio()
        check_text(Vocabulary(args.work / "tokenizer"))
        check_transformer()


if __name__ == "__main__":
    main()
