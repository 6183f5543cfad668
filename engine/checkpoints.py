"""Models on disk: where their files are, what their configs say, what is wrong with them.

A model is a folder in the diffusers layout (transformer/, vae/, ...), or in the official one, whose
parts lie in FL2VA/. Needs no C library: that checks the tensors when a component is opened.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from h3farm.engine import _network_configs as configs
from h3farm.engine import _tokenizer_files
from h3farm.engine._config_files import ConfigFile, reading_errors
from h3farm.engine.configs import (
    COMPONENTS,
    AudioVaeConfig,
    Component,
    DitConfig,
    Normalization,
    Shifts,
    TextEncoderConfig,
    VideoEncoderConfig,
    VideoVaeConfig,
)
from h3farm.engine.costs import Networks
from h3farm.engine.errors import CheckpointError
from h3farm.engine.safetensors import read_header

OFFICIAL_FOLDER = "FL2VA"
PARTITION = "fl2va"  # the weights that render from text; "ref2va" are those for references
LAYOUTS = ("official", "diffusers")
DEFAULT_SHIFTS = Shifts(video=12.0, audio=3.0)
T = TypeVar("T")

logger = logging.getLogger(__name__)

PATCH_VALUES = prod(configs.PATCH_SIZE)  # latents of one channel in a video row
_STEMS = ("model", "diffusion_pytorch_model")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_INDEX = ".safetensors.index.json"
_FUSED = ".attn.qkv_proj.weight"
_RELEASE_MODULES = ("blocks.", "token_refiner.")
_RELEASE_FILE = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The folder that holds a model's components, in one layout."""

    name: str
    root: Path
    layout: str

    def has(self, component: Component) -> bool:
        """Whether the tree has a component at all."""
        return self.place(component).is_dir()

    def place(self, component: Component) -> Path:
        """Where a component's config.json belongs."""
        if component == "video_vae" and self.layout == "diffusers":
            return self.root / "vae"
        return self.root / component

    def folder(self, component: Component) -> Path:
        """Where a component's config.json is; CheckpointError when there is no such folder."""
        folder = self.place(component)
        if not folder.is_dir():
            raise CheckpointError(f"{self.root}: the model has no folder {folder.name}/")
        return folder

    def files(self, component: Component) -> list[Path]:
        """The safetensors files of a component, all of them there; else CheckpointError."""
        folder = self.folder(component)
        if component == "video_vae" and self.layout == "official":
            folder = configs.source_folder(folder)
        return weight_files(folder)

    @property
    def tokenizer(self) -> Path:
        """The folder with the tokenizer's files."""
        for name in ("tokenizer", "processor"):
            if (self.root / name).is_dir():
                return self.root / name
        raise CheckpointError(f"{self.root}: the model has no folder tokenizer/")

    def text_encoder(self) -> TextEncoderConfig:
        """Dimensions of the text encoder."""
        return configs.text_encoder(self.folder("text_encoder"))

    def dit(self) -> DitConfig:
        """Dimensions of the transformer."""
        return configs.dit(self.folder("transformer"))

    def video_vae(self) -> VideoVaeConfig:
        """Dimensions of the video decoder."""
        return configs.video_vae(self.folder("video_vae"))

    def video_encoder(self) -> VideoEncoderConfig:
        """Dimensions of the video encoder."""
        return configs.video_encoder(self.folder("video_vae"))

    def audio_vae(self) -> AudioVaeConfig:
        """Dimensions of the audio decoder."""
        return configs.audio_vae(self.folder("audio_vae"))

    def networks(self) -> Networks:
        """The dimensions that decide what a render costs."""
        return Networks(
            text_encoder=self.text_encoder(),
            transformer=self.dit(),
            video_vae=self.video_vae(),
        )

    def video_normalization(self) -> Normalization:
        """Statistics of the video latent's channels."""
        channels = self.video_vae().latent_channels
        return configs.normalization(self.folder("video_vae"), channels)

    def audio_normalization(self) -> Normalization:
        """Statistics of the audio latent's channels."""
        channels = self.audio_vae().latent_channels
        return configs.normalization(self.folder("audio_vae"), channels)

    def shifts(self) -> Shifts:
        """What the model was trained for; the release's values when no file says."""
        if self.layout == "official":
            path = self.root / "model_index.json"
            if not path.exists():
                return DEFAULT_SHIFTS
            index = ConfigFile.read(path)
            if not index.has("_minimax_h3"):
                return DEFAULT_SHIFTS
            scales = index.section("_minimax_h3").section("sigma_shift_scales")
            return Shifts(video=scales.number("video"), audio=scales.number("audio"))
        return Shifts(
            video=self._shift("scheduler", DEFAULT_SHIFTS.video),
            audio=self._shift("audio_scheduler", DEFAULT_SHIFTS.audio),
        )

    def check_fit(self) -> None:
        """CheckpointError when two components do not speak of the same latents or embeddings."""
        dit = self.dit()
        for given, wanted, what in (
            (self.text_encoder().hidden, dit.text_dim, "the text encoder's hidden size"),
            (self.video_vae().latent_channels * PATCH_VALUES, dit.video_dim, "a video row's size"),
            (self.audio_vae().latent_channels, dit.audio_dim, "the audio VAE's channels"),
        ):
            if given != wanted:
                raise CheckpointError(
                    f"{self.root}: {what} is {given}, the transformer takes {wanted}: "
                    "the components belong to different models"
                )

    def check_row_order(self) -> None:
        """CheckpointError when nothing tells how the transformer's fused q, k and v are ordered.

        The release interleaves their rows by head; conversions to a single file, as ComfyUI reads
        them, have all of q, then k, then v under the same name and shape. Shards are the
        release's; so is a single file that has its name, without a prefix, in its layout.
        """
        files = self.files("transformer")
        for path in files:
            fused = [name for name in read_header(path) if name.endswith(_FUSED)]
            if not fused:
                continue
            if not fused[0].startswith(_RELEASE_MODULES):
                raise CheckpointError(
                    f"{path}: '{fused[0]}' has the prefix of a conversion, whose rows of q, k and "
                    "v may have another order than the release's: use the release's files"
                )
            if len(files) == 1 and (self.layout != "official" or path.name != _RELEASE_FILE):
                raise CheckpointError(
                    f"{path}: a single file may have the release's order of q, k and v or "
                    "ComfyUI's, and nothing in it says which; if it was joined from the release's "
                    f"own shards, call it {OFFICIAL_FOLDER}/transformer/{_RELEASE_FILE}"
                )

    def check_partition(self) -> None:
        """CheckpointError when model_index.json says that these weights are for other tasks."""
        path = self.root / "model_index.json"
        index = ConfigFile.read(path) if path.exists() else None
        if index and index.has("_minimax_h3"):
            index.section("_minimax_h3").require("partition", PARTITION, default=PARTITION)

    def _shift(self, folder: str, default: float) -> float:
        path = self.root / folder / "scheduler_config.json"
        return ConfigFile.read(path).number("shift") if path.exists() else default


@reading_errors()
def open_tree(path: Path, *, layout: str | None = None) -> Tree:
    """The model in a folder: the official layout where FL2VA/ is there, unless `layout` says which.

    CheckpointError, saying what was looked for, when the folder holds no model of that layout.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: there is no such folder")
    resolved = path.resolve()
    inner = resolved / OFFICIAL_FOLDER
    if layout != "diffusers" and (inner / "transformer").is_dir():
        return Tree(name=resolved.name, root=inner, layout="official")
    if not (resolved / "transformer").is_dir():
        raise CheckpointError(
            f"{path}: no model here (looked for transformer/ and {OFFICIAL_FOLDER}/transformer/)"
        )
    found = _layout_of(resolved)
    if layout not in (None, found):
        raise CheckpointError(f"{path}: the model has the {found} layout, not the {layout} one")
    official_folder = resolved.name == OFFICIAL_FOLDER
    name = resolved.parent.name if official_folder else resolved.name
    return Tree(name=name, root=resolved, layout=found)


def _layout_of(root: Path) -> str:
    """The layout of a folder that holds the components themselves."""
    if (root / "video_vae").is_dir() or root.name == OFFICIAL_FOLDER:
        return "official"
    return "diffusers"


def is_model(path: Path) -> bool:
    """Whether a folder holds a model in either layout."""
    # Unlike Path.is_dir, this is False for what may not be looked at.
    return any(
        os.path.isdir(path / inner / "transformer")  # noqa: PTH112
        for inner in (".", OFFICIAL_FOLDER)
    )


def find_models(folders: Sequence[Path]) -> dict[str, Path]:
    """The models in `folders`, by name; each folder is a model itself or holds some.

    A name found twice means the first: earlier folders hide later ones. Folders that are not there
    are passed over; those that may not be read too, with a warning.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        for path in _models_in(folder):
            found.setdefault(open_tree(path).name, path)
    return found


def _models_in(folder: Path) -> Iterator[Path]:
    if is_model(folder):
        yield folder
    elif os.path.isdir(folder):  # noqa: PTH112
        try:
            yield from sorted(child for child in folder.iterdir() if is_model(child))
        except PermissionError:
            logger.warning("%s: no models from here, the folder may not be read", folder)


@reading_errors()
def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of one component: what its index names, or its one file.

    CheckpointError names what is missing.
    """
    indices = sorted(folder.glob(f"*{_INDEX}"))
    preferred = [path for path in indices if path.name.removesuffix(_INDEX) in _STEMS] or indices
    if len(preferred) > 1:
        names = ", ".join(path.name for path in preferred)
        raise CheckpointError(f"{folder}: several indices ({names}), and only one can be meant")
    if preferred:
        return _indexed(preferred[0])
    files = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("."))
    plain = [folder / f"{stem}.safetensors" for stem in _STEMS]
    for path in plain:
        if path in files:
            return [path]
    shards = [match for path in files if (match := _SHARD.fullmatch(path.name))]
    if shards and len(shards) == len(files) and len({m.group(1, 3) for m in shards}) == 1:
        stem, count = shards[0].group(1), int(shards[0].group(3))
        return _all_there(
            [folder / f"{stem}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
        )
    if len(files) == 1:
        return files
    if not files:
        raise CheckpointError(f"{folder}: no safetensors file here")
    names = ", ".join(path.name for path in files)
    raise CheckpointError(f"{folder}: several weight files and no index ({names})")


def _indexed(index: Path) -> list[Path]:
    names: dict[str, None] = {}
    weights = ConfigFile.read(index).section("weight_map")
    for tensor in weights:
        names.setdefault(weights.text(tensor))
    if not names:
        raise CheckpointError(f"{index}: 'weight_map' is empty")
    return _all_there([configs.inside(index.parent, name) for name in sorted(names)])


def _all_there(files: list[Path]) -> list[Path]:
    missing = [path.name for path in files if not path.exists()]
    if missing:
        raise CheckpointError(
            f"{files[0].parent}: {len(missing)} of {len(files)} shards are missing: "
            f"{', '.join(missing)}"
        )
    return files


def describe(path: Path) -> dict[str, Any]:
    """What a model holds, as JSON values: components, files, types, parameters, problems.

    Never fails on a damaged model: what is wrong stands in `problems`, one sentence each.
    """
    tree = open_tree(path)
    problems: list[str] = []
    components = {name: _describe_component(tree, name, problems) for name in COMPONENTS}
    _attempt(lambda: _tokenizer_files.read(tree.tokenizer), problems)
    _attempt(tree.shifts, problems)
    if not problems:
        _attempt(tree.check_fit, problems)
        _attempt(tree.check_row_order, problems)
        _attempt(tree.check_partition, problems)
    networks = None if problems else tree.networks()
    size = sum(part["bytes"] for part in components.values())
    return {
        "name": tree.name,
        "path": str(path),
        "layout": tree.layout,
        "components": components,
        "parameters": sum(part["parameters"] for part in components.values()),
        "bytes": size,
        "networks": networks.to_json() if networks else None,
        "signature": networks.signature(size) if networks else None,
        "problems": problems,
    }


_CONFIGS: dict[Component, Callable[[Tree], Any]] = {
    "text_encoder": Tree.text_encoder,
    "transformer": Tree.dit,
    "video_vae": Tree.video_vae,
    "audio_vae": Tree.audio_vae,
}
_NORMALIZATIONS: dict[Component, Callable[[Tree], Normalization]] = {
    "video_vae": Tree.video_normalization,
    "audio_vae": Tree.audio_normalization,
}


def _describe_component(tree: Tree, name: Component, problems: list[str]) -> dict[str, Any]:
    files = _attempt(lambda: tree.files(name), problems) or []
    config = _attempt(lambda: _CONFIGS[name](tree), problems) if tree.has(name) else None
    if config is not None and name in _NORMALIZATIONS:
        _attempt(lambda: _NORMALIZATIONS[name](tree), problems)
    dtypes: Counter[str] = Counter()
    tensors = parameters = 0
    sizes = {path: _attempt(partial(_size, path), problems) or 0 for path in files}
    for path in files:
        header = _attempt(partial(read_header, path), problems) or {}
        tensors += len(header)
        parameters += sum(prod(entry.shape) for entry in header.values())
        dtypes.update(entry.dtype for entry in header.values())
    return {
        "folder": str(tree.place(name)),
        "files": [{"name": path.name, "bytes": size} for path, size in sizes.items()],
        "bytes": sum(sizes.values()),
        "tensors": tensors,
        "parameters": parameters,
        "dtypes": dict(dtypes),
        "layers": getattr(config, "layers", None),
    }


def _size(path: Path) -> int:
    return path.stat().st_size


def _attempt(call: Callable[[], T], problems: list[str]) -> T | None:
    """What a call returns; None with its sentence noted when the model is at fault."""
    try:
        with reading_errors():
            return call()
    except CheckpointError as error:
        problems.append(str(error))
        return None
