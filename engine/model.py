"""An opened model: every network of a checkpoint tree, mapped and checked, ready to compute."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from h3farm.engine._native import AudioVae, Checkpoint, Context, Dit, TextEncoder, VideoVae
from h3farm.engine.checkpoints import Tree, open_tree
from h3farm.engine.configs import COMPONENTS, Component
from h3farm.engine.tokenizer import Tokenizer

HEADER_LENGTH_BYTES = 8


class Model:
    """The networks of one tree. Opening maps the files and checks every tensor; nothing is read."""

    def __init__(self, context: Context, path: Path) -> None:
        """Open all components of the tree at `path`; CheckpointError says what is wrong with it."""
        self.path = path
        self.tree: Tree = open_tree(path)
        self.tree.check_fit()
        self.tokenizer = Tokenizer(self.tree.tokenizer)
        self.dit_config = self.tree.dit()
        self.encoder_config = self.tree.text_encoder()
        self.video_vae_config = self.tree.video_vae()
        self.audio_vae_config = self.tree.audio_vae()
        self.video_normalization = self.tree.video_normalization()
        self.audio_normalization = self.tree.audio_normalization()
        with ExitStack() as stack:

            def weights(component: Component) -> Checkpoint:
                files = self.tree.files(component)
                return stack.enter_context(Checkpoint(context, component, files))

            self.encoder = stack.enter_context(
                TextEncoder(context, weights("text_encoder"), self.encoder_config)
            )
            self.dit = stack.enter_context(Dit(context, weights("transformer"), self.dit_config))
            self.video_vae = stack.enter_context(
                VideoVae(context, weights("video_vae"), self.video_vae_config)
            )
            self.audio_vae = stack.enter_context(
                AudioVae(context, weights("audio_vae"), self.audio_vae_config)
            )
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Unmap everything."""
        self._stack.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def identity(self) -> list[dict[str, Any]]:
        """What tells this model's files from others': name, size, time, and the header's sha256.

        Hashing 100 GB of weights would take minutes of every render; the header names every tensor
        with its type and place.
        """
        return [
            {"component": component, **file_identity(path, self.tree.root)}
            for component in COMPONENTS
            for path in self.tree.files(component)
        ]


def file_identity(path: Path, root: Path) -> dict[str, Any]:
    """One safetensors file, as `Model.identity` has it."""
    status = path.stat()
    with path.open("rb") as file:
        length = int.from_bytes(file.read(HEADER_LENGTH_BYTES), "little")
        header = file.read(length)
    return {
        "file": os.path.relpath(path, root),
        "bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "header_sha256": hashlib.sha256(header).hexdigest(),
    }
