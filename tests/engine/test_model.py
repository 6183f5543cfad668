"""Opening a whole model: what C refuses is told with the file that says it."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from h3farm.engine._native import Context
from h3farm.engine.configs import COMPONENTS
from h3farm.engine.errors import CheckpointError
from h3farm.engine.model import Model

TINY = Path(__file__).parents[1] / "golden/tiny-h3"


@pytest.mark.parametrize(
    ("file", "keys", "value", "sentence"),
    [
        ("transformer", ["num_layers"], 2**31 - 1, "layers is 2147483647, expected 0 to 65536"),
        ("text_encoder", ["text_config", "head_dim"], 1, "head size 1 is odd"),
        ("video_vae", ["vae_tile_overlap_min"], 1, "expected a multiple of 16 below the tile's"),
        ("video_vae/source", ["vit_decoder_kwargs", "heads"], 2**31 - 1, "does not fit"),
    ],
)
def test_a_dimension_that_c_refuses_names_the_config(
    tmp_path: Path, file: str, keys: list[str], value: int, sentence: str
) -> None:
    model = Path(shutil.copytree(TINY, tmp_path / "model"))
    path = model / "FL2VA" / file / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    section = config
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    path.write_text(json.dumps(config), encoding="utf-8")
    with Context(1) as context, pytest.raises(CheckpointError) as caught:
        Model(context, model)
    assert sentence in str(caught.value)
    place = model / "FL2VA" / file.removesuffix("/source") / "config.json"
    assert str(place) in str(caught.value)


@pytest.mark.parametrize("folder", ["text_encoder", "transformer", "video_vae/source", "audio_vae"])
def test_a_type_that_is_not_computed_with_is_named_with_its_tensor(
    tmp_path: Path, folder: str
) -> None:
    model = Path(shutil.copytree(TINY, tmp_path / "model"))
    for path in (model / "FL2VA" / folder).glob("*.safetensors"):
        whole = path.read_bytes()
        begin = 8 + int.from_bytes(whole[:8], "little")
        path.write_bytes(whole[:begin].replace(b'"F32"', b'"I32"') + whole[begin:])
    with Context(1) as context, pytest.raises(CheckpointError) as caught:
        Model(context, model)
    assert "is stored as I32, this engine computes with F32, F16 and BF16" in str(caught.value)
    assert str(model / "FL2VA" / folder) in str(caught.value)


@pytest.mark.parametrize(
    ("file", "changes", "sentence"),
    [
        ("FL2VA/transformer/config.json", {"rope_inv_freq_len": 1}, "has shape [4], expected [1]"),
        ("FL2VA/transformer/config.json", {"rope_theta": 500.0}, "'rope.inv_freq' is 0.1"),
        ("vae/config.json", {"decoder_num_register_tokens": 0}, "'decoder.register_tokens' has"),
    ],
)
def test_a_tensor_that_the_config_contradicts_is_no_model(
    tmp_path: Path, file: str, changes: dict[str, float], sentence: str
) -> None:
    """Each of these would render, and wrongly."""
    model = Path(shutil.copytree(TINY, tmp_path / "model"))
    path = model / file
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | changes), encoding="utf-8")
    if not file.startswith("FL2VA"):
        shutil.rmtree(model / "FL2VA")
    with Context(1) as context, pytest.raises(CheckpointError) as caught:
        Model(context, model)
    assert sentence in str(caught.value)


def test_one_network_at_a_time_is_mapped() -> None:
    """The weights of the others leave the process's memory; they are opened again when needed."""

    def mapped() -> set[str]:
        text = Path("/proc/self/maps").read_text(encoding="utf-8")
        return {name for name in COMPONENTS if f"/{name}/" in text}

    with Context(1) as context, Model(context, TINY) as model:
        assert set(model.opens.values()) == {1}
        model.one_network = True
        ids, _ = model.tokenizer.present("fox")
        first = model.encoder.encode(ids)
        if sys.platform == "linux":
            assert mapped() == {"text_encoder"}
        assert model.dit is model.dit
        assert (model.encoder.encode(ids) == first).all()
        assert model.opens == {"text_encoder": 2, "transformer": 2, "video_vae": 1, "audio_vae": 1}
