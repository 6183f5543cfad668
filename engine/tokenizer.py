"""From a prompt to token ids, as the release's tokenizer does it: no template, nothing added.

Added tokens are cut out of the text first; what lies between is NFC-normalised, split by Qwen's
pattern and merged byte by byte. Each segment of a request is tokenised by itself, so nothing merges
across a label's end. Source: docs/model.md, "Prompt to embedding".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Steps

from h3farm.engine import _tokenizer_files
from h3farm.engine.errors import CheckpointError
from h3farm.engine.packing import TEXT, VIDEO

Ints = npt.NDArray[np.int32]

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
# Those that H3 added to Qwen's tokenizer, and those that its requests are made of.
REQUIRED = (
    *("<d>", "</d>", "<|cutoff|>", "<|lyrics_start|>", "<|lyrics_end|>"),
    *("<|caption_start|>", "<|caption_end|>"),
    *(VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """A picture, clip or sound of a request, as far as its tokens are concerned.

    tokens: the pads of an image, or of each block of a video. timestamps: seconds, one a block of a
    video. sound: whether a video brings its own.
    """

    kind: Literal["image", "video", "audio"]
    tokens: int = 0
    timestamps: tuple[float, ...] = ()
    sound: bool = False


class Tokenizer:
    """A model's tokenizer."""

    def __init__(self, folder: Path) -> None:
        """Read the folder; CheckpointError says what it lacks."""
        files = _tokenizer_files.read(folder)
        ids = {token.content: cast(int, token.id) for token in files.added}
        _check(folder, files.vocab, ids)
        # In the vocabulary an added token keeps the id that the files give it; the library
        # would number them anew.
        model_vocab = files.vocab | ids
        try:
            model = BPE(model_vocab, files.merges, ignore_merges=files.ignore_merges)
        except Exception as error:
            raise CheckpointError(f"{folder}: vocabulary and merges disagree: {error}") from error
        self._backend = Backend(model)
        self._backend.normalizer = NFC()
        split = Split(Regex(SPLIT_PATTERN), "isolated")
        self._backend.pre_tokenizer = Steps(
            [split, ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        for token in files.added:
            self._add(token)
        self._ids = model_vocab

    def _add(self, token: _tokenizer_files.Added) -> None:
        added = AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=token.special,
        )
        if token.special:
            self._backend.add_special_tokens([added])
        else:
            self._backend.add_tokens([added])

    def id(self, token: str) -> int:
        """The id of one token; KeyError when there is none of that name."""
        return self._ids[token]

    def encode(self, text: str) -> Ints:
        """One segment to ids: int32 [n], n = 0 for an empty text."""
        return np.array(self._backend.encode(text, add_special_tokens=False).ids, np.int32)

    def present(self, prompt: str, media: Sequence[Medium] = ()) -> tuple[Ints, Ints]:
        """A whole request to ids and modality tags, int32 [n] both: media, then the prompt.

        Each medium is announced by its label, counted by kind; the rows of a vision block are
        tagged as video, all others as text.
        """
        segments = _Segments(self)
        counts = {"image": 0, "video": 0, "audio": 0}
        for medium in media:
            if medium.kind == "audio" or medium.sound:
                counts["audio"] += 1
                segments.text(f"<Audio {counts['audio']}>: ")
            if medium.kind == "image":
                counts["image"] += 1
                segments.text(f"<Picture {counts['image']}>: ")
                segments.vision(IMAGE_PAD, medium.tokens)
            elif medium.kind == "video":
                counts["video"] += 1
                segments.text(f"<Video {counts['video']}>: ")
                for seconds in medium.timestamps:
                    segments.text(f"<{seconds:.1f} seconds>")
                    segments.vision(VIDEO_PAD, medium.tokens)
        segments.text(prompt)
        return segments.finish()


class _Segments:
    """Ids and tags in the making."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[Ints] = []
        self._tags: list[Ints] = []

    def text(self, text: str) -> None:
        """A segment of its own."""
        self._append(self._tokenizer.encode(text), TEXT)

    def vision(self, pad: str, count: int) -> None:
        """Start, `count` pads, end."""
        tokens = [VISION_START, *[pad] * count, VISION_END]
        self._append(np.array([self._tokenizer.id(token) for token in tokens], np.int32), VIDEO)

    def _append(self, ids: Ints, tag: int) -> None:
        self._ids.append(ids)
        self._tags.append(np.full(len(ids), tag, np.int32))

    def finish(self) -> tuple[Ints, Ints]:
        return np.concatenate(self._ids), np.concatenate(self._tags)


def _check(folder: Path, vocab: dict[str, int], added: dict[str, int]) -> None:
    """What would otherwise be dropped or read as plain text without a word."""
    symbols = [symbol for symbol in ByteLevel.alphabet() if symbol not in vocab]
    if symbols:
        raise CheckpointError(
            f"{folder}: the vocabulary lacks {len(symbols)} of the 256 byte symbols"
        )
    missing = [token for token in REQUIRED if token not in added]
    if missing:
        raise CheckpointError(f"{folder}: the tokenizer lacks {', '.join(missing)}")
