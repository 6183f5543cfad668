"""A tokenizer in the release's format, with a vocabulary learned from the captions.

The format is Qwen2's byte-level BPE: `tokenizer.json`, `tokenizer_config.json`, `vocab.json`,
`merges.txt`. H3's own seven tokens stand in `additional_special_tokens` only and take the ids after
the others.
"""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import regex
from tokenizers import AddedToken, Tokenizer

from .captions import caption
from .geometry import Shape
from .scenes import lane_scene, lone_scene
from .training import SEED

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The released tokens in the order of their ids; the first SPECIAL of them are special.
ADDED = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
SPECIAL = 14
H3 = [
    "<d>",
    "</d>",
    "<|cutoff|>",
    "<|lyrics_start|>",
    "<|lyrics_end|>",
    "<|caption_start|>",
    "<|caption_end|>",
]
MERGES = 520
SMALL = Shape(width=128, height=128, frames=22)
LABELS = ["<Picture 1>: ", "<Picture 2>: ", "<Video 1>: ", "<Audio 1>: "]


def byte_alphabet() -> dict[int, str]:
    """The printable stand-in of each byte, in the order of ids."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }


def corpus(count: int = 6000) -> list[str]:
    """Captions as the training draws them, and the labels of pictures."""
    rng = np.random.default_rng([SEED, 1])
    texts = []
    for i in range(count):
        scene = lone_scene(rng, SMALL) if i % 8 else lane_scene(rng, SMALL, 2)
        texts.append(caption(rng, scene))
    return texts + LABELS * 200


def learn_merges(texts: list[str], count: int) -> list[tuple[str, str]]:
    """Byte-pair merges: the most frequent pair first, ties by the pair's own text."""
    table = byte_alphabet()
    words: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        for piece in regex.findall(SPLIT, text):
            words[tuple(table[byte] for byte in piece.encode())] += 1
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({_merged(word, best): times for word, times in words.items()})
    return merges


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    i = 0
    while i < len(word):
        if word[i : i + 2] == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


def _added(i: int, token: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"content": token, **flags, "special": i < SPECIAL}


def _write(path: Path, value: Any, indent: int | None = 2) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(folder: Path) -> None:
    """Learn the vocabulary and write the four files."""
    folder.mkdir(parents=True, exist_ok=True)
    merges = learn_merges(corpus(), MERGES)
    tokens = list(byte_alphabet().values()) + [a + b for a, b in merges]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    ids = {token: len(vocab) + i for i, token in enumerate(ADDED + H3)}
    bytes_only = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    split = {
        "type": "Split",
        "pattern": {"Regex": SPLIT},
        "behavior": "Isolated",
        "invert": False,
    }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": [list(merge) for merge in merges],
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[token], **_added(i, token)} for i, token in enumerate(ADDED)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_only]},
        "post_processor": bytes_only,
        "decoder": bytes_only,
        "model": model,
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(ids[token]): _added(i, token) for i, token in enumerate(ADDED)
        },
        "additional_special_tokens": ADDED[1:SPECIAL] + H3,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    _write(folder / "tokenizer.json", tokenizer, indent=None)
    _write(folder / "tokenizer_config.json", config)
    _write(folder / "vocab.json", vocab, indent=None)
    lines = "".join(f"{a} {b}\n" for a, b in merges)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{lines}", encoding="utf-8")


class Vocabulary:
    """The tokenizer as the engine uses it: text in, ids out, nothing added."""

    def __init__(self, folder: Path) -> None:
        """Read the tokenizer that `write_tokenizer` left in `folder`."""
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        known = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in H3])
        self.size = known + len(H3)

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def id(self, token: str) -> int:
        """Id of an added token."""
        return int(self._tokenizer.token_to_id(token))
