"""Trains the whole demo model: each stage takes up where it was cut, finished ones are passed over.

python -m tools.demo_model --work DIR --out DIR
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from . import latents, train_audio, train_transformer, train_video
from .export import export
from .sampling import evaluate
from .vocabulary import write_tokenizer


def make_tokenizer(work: Path) -> None:
    """The tokenizer, once: its ids must not change under a trained text encoder."""
    if not (work / "tokenizer/merges.txt").exists():
        write_tokenizer(work / "tokenizer")


STAGES: dict[str, Callable[[Path], None]] = {
    "tokenizer": make_tokenizer,
    "audio": lambda work: train_audio.train(work / "audio"),
    "video": lambda work: train_video.train_joint(work / "video"),
    "latents": latents.build_all,
    "transformer": train_transformer.train,
    "decoder": lambda work: train_video.train_decoder(work / "decoder", work / "video"),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="caches, resume points, logs")
    parser.add_argument("--out", type=Path, help="write the finished tree here")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.stages:
        print(f"== {name}", flush=True)
        STAGES[name](args.work)
    if args.out:
        print(f"{args.out}: {export(args.work, args.out) / 1e6:.1f} MB")
        print(evaluate(args.work, 64, steps=12, first=False))
        print(evaluate(args.work, 32, steps=12, first=True))


if __name__ == "__main__":
    main()
