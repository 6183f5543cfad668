"""Writes the trained model as the release lays it out: names, orders, dtypes, FL2VA tree."""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from . import dims, text
from .latents import load_codecs, statistics
from .train_transformer import load
from .vocabulary import Vocabulary

LIMIT = 25_000_000  # bytes of the whole tree
TRANSFORMER_PREFIXES = {
    "proj_in": "video_patch_proj",
    "audio_proj_in": "audio_patch_proj",
    "context_embedder": "condition_proj",
    "time_embedder.linear_1": "time_embedder.proj_in",
    "time_embedder.linear_2": "time_embedder.proj_out",
    "norm_out.norm": "final_layer.norm",
    "norm_out.linear": "final_layer.adaln_proj.linear",
    "proj_out": "final_layer.video_out",
    "audio_proj_out": "final_layer.audio_out",
    "token_refiner.refiner_blocks": "token_refiner.blocks",
    "transformer_blocks": "blocks",
}
TRANSFORMER_PARTS = {
    "attn.norm_q": "attn.q_norm",
    "attn.norm_k": "attn.k_norm",
    "attn.to_out.0": "attn.out_proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
}
VIDEO_PREFIXES = {"decoder.proj_in": "decoder.x_embedder", "encoder.down_blocks": "encoder.down"}
VIDEO_PARTS = {
    "resnets": "block",
    "conv_shortcut": "nin_shortcut",
    "downsamplers.0": "downsample",
    "attn.to_out.0": "attn.to_out",
    "ff.net.0.proj": "ff.w1",
    "ff.net.2": "ff.w2",
}
FLOAT32 = ("video_patch_proj.", "audio_patch_proj.", "time_embedder.", "rope.")
FLOAT32_HEADS = ("final_layer.video_out.", "final_layer.audio_out.")
State = dict[str, Tensor]


def renamed(name: str, prefixes: dict[str, str], parts: dict[str, str]) -> str:
    """A diffusers name in the official spelling; only whole dotted elements are replaced."""
    dotted = f"{name}."
    for old, new in prefixes.items():
        if dotted.startswith(f"{old}."):
            dotted = f"{new}.{dotted[len(old) + 1 :]}"
            break
    dotted = f".{dotted}"
    for old, new in parts.items():
        dotted = dotted.replace(f".{old}.", f".{new}.")
    return dotted.strip(".")


def official(
    state: State, heads: int, prefixes: dict[str, str], parts: dict[str, str], fused: str
) -> State:
    """Rename; fuse q, k, v head by head; put the gate before the value in gated feed-forwards."""
    out: State = {}
    for name, tensor in state.items():
        if ".to_k." in name or ".to_v." in name:
            continue
        value, new = tensor, renamed(name, prefixes, parts)
        if ".to_q." in name:
            three = [state[name.replace("to_q", part)] for part in ("to_q", "to_k", "to_v")]
            value = torch.cat([part.unflatten(0, (heads, -1)) for part in three], 1).flatten(0, 1)
            new = new.replace("to_q", fused)
        elif ".ff.net.0.proj." in name:
            value = torch.cat(tensor.chunk(2)[::-1])
        out[new] = value.contiguous()
    return out


def write_json(path: Path, value: Any) -> None:
    """Indented JSON, as configs are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_shards(folder: Path, state: State, shards: int = 2) -> None:
    """`model-0000i-of-0000n.safetensors` of like size, and the index."""
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(tensor.nbytes for tensor in state.values())
    where: dict[str, str] = {}
    parts: list[State] = [{} for _ in range(shards)]
    used = 0
    for name in sorted(state):
        shard = min(used * shards // total, shards - 1)
        parts[shard][name] = state[name]
        where[name] = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        used += state[name].nbytes
    for i, part in enumerate(parts):
        write_tensors(folder / f"model-{i + 1:05d}-of-{shards:05d}.safetensors", part)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    write_json(folder / "model.safetensors.index.json", index)


def write_tensors(path: Path, state: State) -> None:
    """One safetensors file, readable by all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: t.contiguous() for name, t in state.items()}, path, metadata={"format": "pt"})
    path.chmod(0o644)


def stored(state: State, is_float32: Callable[[str], bool]) -> State:
    """bfloat16 but for the float32 island."""
    return {
        name: tensor.float() if is_float32(name) else tensor.to(torch.bfloat16)
        for name, tensor in state.items()
    }


def export_transformer(folder: Path, state: State) -> None:
    """transformer/: official names, bfloat16 with the release's float32 island."""
    cfg = dims.TRANSFORMER
    out = official(
        state, cfg["num_attention_heads"], TRANSFORMER_PREFIXES, TRANSFORMER_PARTS, "qkv_proj"
    )
    count = cfg["rope_inv_freq_len"]
    steps = torch.arange(0, 2 * count, 2, dtype=torch.float32)
    out["rope.inv_freq"] = 1.0 / (10000.0 ** (steps / (2 * count)))
    write_shards(folder, stored(out, lambda name: name.startswith(FLOAT32 + FLOAT32_HEADS)))
    write_json(folder / "config.json", cfg)


def text_encoder_config(vocabulary: Vocabulary) -> dict[str, Any]:
    """The whole config.json of text_encoder/."""
    depth = dims.TEXT["num_hidden_layers"]
    config = text.text_config(text.vocabulary_rows(vocabulary), depth)
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": vocabulary.id("<|image_pad|>"),
        "model_type": "qwen3_vl",
        "text_config": {
            **config,
            "bos_token_id": vocabulary.id("<|endoftext|>"),
            "eos_token_id": vocabulary.id("<|im_end|>"),
        },
        "tie_word_embeddings": False,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": vocabulary.id("<|video_pad|>"),
        "vision_config": {
            **dims.VISION,
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "initializer_range": 0.02,
            "model_type": "qwen3_vl",
            "out_hidden_size": dims.TEXT["hidden_size"],
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": vocabulary.id("<|vision_end|>"),
        "vision_start_token_id": vocabulary.id("<|vision_start|>"),
    }


def export_text_encoder(folder: Path, state: State, vocabulary: Vocabulary) -> None:
    """text_encoder/: the trained layers, identities after them, a vision tower without a say."""
    config = text_encoder_config(vocabulary)
    shell = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**config)).state_dict()
    # Norms of 1 and zeros otherwise: the mergers' last layers give zero rows, as in training.
    out = {
        name: torch.ones_like(tensor)
        if tensor.ndim == 1 and name.endswith("weight")
        else torch.zeros_like(tensor)
        for name, tensor in shell.items()
    }
    out |= text.deepen(state, prefix="model.language_model.")
    if out.keys() != shell.keys():
        raise ValueError(f"unexpected tensors: {sorted(out.keys() ^ shell.keys())[:4]}")
    write_shards(folder, stored(out, lambda name: False))
    write_json(folder / "config.json", config)


def export_video_vae(folder: Path, state: State, mean: Tensor, std: Tensor) -> None:
    """video_vae/: config beside source/, float32."""
    wrapper, source = dims.official_video_vae(mean.flatten().tolist(), std.flatten().tolist())
    vit = source["vit_decoder_kwargs"]
    out = official(state, vit["heads"], VIDEO_PREFIXES, VIDEO_PARTS, "to_qkv")
    # A left-over of the release's own training that nothing reads.
    out["decoder.mask_token"] = torch.zeros(1, 1, vit["heads"] * vit["dim_head"])
    write_tensors(folder / "source/model.safetensors", out)
    write_json(folder / "config.json", wrapper)
    write_json(folder / "source/config.json", source)


def export_audio_vae(folder: Path, state: State, mean: Tensor, std: Tensor) -> None:
    """audio_vae/: diffusers' names are the official ones; float32, weight norm unfolded."""
    config, metadata = dims.official_audio_vae(mean.flatten().tolist(), std.flatten().tolist())
    write_tensors(folder / "model.safetensors", state)
    write_json(folder / "config.json", config)
    write_json(folder / "metadata.json", metadata)
    (folder / "config.yaml").write_text(
        f"model_config:\n  sr: 32000\n  decoder_dim: {dims.AUDIO_VAE['decoder_dim']}\n"
        f"  audio_channel: 1\n  vae_latent_channels: {dims.AUDIO_LATENT_CHANNELS}\n"
    )


def export_processor(folder: Path, tokenizer: Path) -> None:
    """processor/: the release's picture settings beside the tokenizer."""
    shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
    common = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    for name, kind, least, most in (
        ("preprocessor_config", "image_processor_type", 65536, 16777216),
        ("video_preprocessor_config", "video_processor_type", 4096, 25165824),
    ):
        loader = (
            "Qwen2VLImageProcessorFast" if kind.startswith("image") else "Qwen3VLVideoProcessor"
        )
        size = {"longest_edge": most, "shortest_edge": least}
        write_json(folder / f"{name}.json", {"size": size, **common, kind: loader})


INDEX = {
    "_class_name": "MiniMaxH3Pipeline",
    "_diffusers_version": "0.32.2",
    "text_encoder": ["transformers", "MiniMaxH3Qwen3VLHFEncoder"],
    "tokenizer": ["transformers", "Qwen2TokenizerFast"],
    "video_vae": ["diffusers", "MiniMaxH3VideoVAE"],
    "audio_vae": ["diffusers", "MiniMaxH3AudioVAE"],
    "scheduler": None,
    "transformer": ["diffusers", "MiniMaxH3DiTModel"],
    "processor": ["transformers", "Qwen3VLProcessor"],
    "_minimax_h3": {
        "schema_version": 1,
        "partition": "fl2va",
        "tasks": ["t2va", "fl2va"],
        "task_aliases": {},
        "sigma_shift_scales": {"video": 12.0, "audio": 3.0},
    },
}


def export(work: Path, out: Path) -> int:
    """Write `out`/FL2VA from the stages in `work`; returns the tree's bytes, at most LIMIT."""
    root = out / "FL2VA"
    vocabulary = Vocabulary(work / "tokenizer")
    model = load(work)
    stage = "decoder" if (work / "decoder/ema.pt").exists() else "video"
    vae, audio_vae = load_codecs(work, stage)
    video, audio = statistics(work)
    export_transformer(root / "transformer", model.transformer.state_dict())
    export_text_encoder(root / "text_encoder", model.text.state_dict(), vocabulary)
    export_video_vae(root / "video_vae", vae.state_dict(), video.mean, video.std)
    export_audio_vae(root / "audio_vae", audio_vae.state_dict(), audio.mean, audio.std)
    shutil.copytree(work / "tokenizer", root / "tokenizer", dirs_exist_ok=True)
    export_processor(root / "processor", work / "tokenizer")
    write_json(root / "model_index.json", INDEX)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if size > LIMIT:
        raise SystemExit(f"{out} has {size} bytes, more than {LIMIT}")
    return size


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the trained stages")
    parser.add_argument("--out", type=Path, required=True, help="folder to write FL2VA/ into")
    args = parser.parse_args()
    print(f"{args.out}: {export(args.work, args.out) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
