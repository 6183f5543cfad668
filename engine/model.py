"""An opened model: every network of a checkpoint tree, mapped and checked, ready to compute."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from h3farm.engine._config_files import reading_errors
from h3farm.engine._native import AudioVae, Checkpoint, Context, Dit, TextEncoder, VideoVae
from h3farm.engine.checkpoints import Tree, open_tree
from h3farm.engine.configs import COMPONENTS, Component
from h3farm.engine.errors import CheckpointError, EngineError
from h3farm.engine.tokenizer import Tokenizer

HEADER_LENGTH_BYTES = 8
Network = TextEncoder | Dit | VideoVae | AudioVae
SMALL_FILE = 64 << 20  # hashed whole: configs and tokenizers, never weights


class Model:
    """The networks of one tree. Opening maps the files and checks every tensor; nothing is read.

    one_network: from now on only the network that was asked for last is mapped. opens: how often
    each was opened.
    """

    @reading_errors()
    def __init__(self, context: Context, path: Path) -> None:
        """Open all components of the tree at `path`; CheckpointError says what is wrong with it."""
        self.path = path
        self.tree: Tree = open_tree(path)
        self.tree.check_fit()
        self.tree.check_row_order()
        self.tree.check_partition()
        self.tokenizer = Tokenizer(self.tree.tokenizer)
        self.networks = self.tree.networks()
        self.video_normalization = self.tree.video_normalization()
        self.audio_normalization = self.tree.audio_normalization()
        self.one_network = False
        self.opens: Counter[Component] = Counter()
        self._context = context
        self._networks: dict[Component, tuple[Network, ExitStack]] = {}
        try:
            for component in COMPONENTS:
                self._network(component)
            self._stamps = self._file_stamps()
            self.signature = self.networks.signature(sum(size for _, size, _ in self._stamps or ()))
            self.identity = self._identity()
        except BaseException:
            self.close()
            raise

    @property
    def encoder_identity(self) -> str:
        """What an embedding depends on: the files of text encoder and tokenizer, as a text."""
        parts = {self.tree.place("text_encoder"), self.tree.tokenizer}
        mine = [os.path.relpath(part, self.tree.root) for part in sorted(parts)]
        files = [each for each in self.identity if each["file"].startswith(tuple(mine))]
        return json.dumps(files, sort_keys=True)

    def weight_bytes(self, *components: Component) -> int:
        """Bytes of the weight files of these networks, by default of all."""
        return sum(
            path.stat().st_size
            for component in components or COMPONENTS
            for path in self.tree.files(component)
        )

    @property
    def encoder(self) -> TextEncoder:
        """The text encoder, mapped."""
        return cast("TextEncoder", self._network("text_encoder"))

    @property
    def dit(self) -> Dit:
        """The transformer, mapped."""
        return cast("Dit", self._network("transformer"))

    @property
    def video_vae(self) -> VideoVae:
        """The picture's decoder, mapped."""
        return cast("VideoVae", self._network("video_vae"))

    @property
    def audio_vae(self) -> AudioVae:
        """The sound's decoder, mapped."""
        return cast("AudioVae", self._network("audio_vae"))

    def _network(self, component: Component) -> Network:
        """A network, opened when it is not open; with `one_network` the others are closed first."""
        if self.one_network:
            for other in [name for name in self._networks if name != component]:
                self._networks.pop(other)[1].close()
        if component not in self._networks:
            with ExitStack() as stack, self._naming(component):
                files = self.tree.files(component)
                weights = stack.enter_context(Checkpoint(self._context, component, files))
                network = self._made(component, weights)
                stack.enter_context(network)
                self.opens[component] += 1
                self._networks[component] = network, stack.pop_all()
        return self._networks[component][0]

    def _made(self, component: Component, weights: Checkpoint) -> Network:
        match component:
            case "text_encoder":
                return TextEncoder(self._context, weights, self.networks.text_encoder)
            case "transformer":
                return Dit(self._context, weights, self.networks.transformer)
            case "video_vae":
                return VideoVae(self._context, weights, self.networks.video_vae)
            case "audio_vae":
                return AudioVae(self._context, weights, self.tree.audio_vae())

    def is_still(self, path: Path) -> bool:
        """Whether this is the model at `path`, none of its weights replaced since it was opened."""
        return self.path == path and self._stamps == self._file_stamps()

    @contextmanager
    def _naming(self, component: Component) -> Iterator[None]:
        """Say whose config it is that C refuses: it knows the number alone."""
        try:
            yield
        except (EngineError, OverflowError) as error:
            if type(error) not in (EngineError, OverflowError):
                raise
            place = self.tree.place(component) / "config.json"
            raise CheckpointError(f"{place}: {error}") from error

    def _file_stamps(self) -> list[tuple[Path, int, int]] | None:
        """Path, size and time of every weight file; None when one is missing."""
        try:
            return [
                (path, status.st_size, status.st_mtime_ns)
                for component in COMPONENTS
                for path in self.tree.files(component)
                for status in (path.stat(),)
            ]
        except (CheckpointError, OSError):
            return None

    def close(self) -> None:
        """Unmap everything."""
        while self._networks:
            self._networks.popitem()[1][1].close()

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

    def _identity(self) -> list[dict[str, Any]]:
        """What tells this model's files from others'.

        Configs and tokenizer files by size and sha256; weights by size, time and the sha256 of
        their header, which names every tensor with its type and place: hashing 100 GB would take
        minutes of every render.
        """
        weights = [path for component in COMPONENTS for path in self.tree.files(component)]
        folders = {self.tree.place(component) for component in COMPONENTS}
        folders |= {path.parent for path in weights} | {self.tree.tokenizer}
        small = [
            path
            for folder in sorted(folders)
            for path in sorted(folder.iterdir())
            if path.is_file() and path.suffix != ".safetensors" and path.stat().st_size < SMALL_FILE
        ]
        return [
            *(_small_identity(path, self.tree.root) for path in small),
            *(_weights_identity(path, self.tree.root) for path in weights),
        ]


def tensor_faults(path: Path) -> list[str]:
    """What opening the model finds wrong with it, in one sentence; empty when everything fits.

    Takes milliseconds at any size: headers are read, weights are not.
    """
    try:
        with Context(threads=1) as context, Model(context, path):
            return []
    except EngineError as error:
        return [str(error)]


def _small_identity(path: Path, root: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {
        "file": os.path.relpath(path, root),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _weights_identity(path: Path, root: Path) -> dict[str, Any]:
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
