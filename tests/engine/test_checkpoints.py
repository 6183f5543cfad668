"""Models on disk: both layouts, shards, and one sentence for each thing that can be wrong."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from h3farm.engine import checkpoints
from h3farm.engine.checkpoints import Tree, open_tree
from h3farm.engine.errors import CheckpointError
from h3farm.engine.safetensors import read_header

TINY = Path(__file__).parents[1] / "golden/tiny-h3"
LAYOUTS = ("official", "diffusers")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "my model é"))


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON object ("a.b" is b below a); None removes one."""
    value = json.loads(path.read_text())
    for dotted, new in changes.items():
        *outer, key = dotted.split("__")
        target = value
        for name in outer:
            target = target[name]
        if new is None:
            del target[key]
        else:
            target[key] = new
    path.write_text(json.dumps(value))


def read_everything(tree: Tree) -> None:
    for read in (tree.text_encoder, tree.dit, tree.video_vae, tree.audio_vae, tree.shifts):
        read()
    tree.video_normalization()
    tree.audio_normalization()
    for component in checkpoints.COMPONENTS:
        tree.files(component)
    tree.check_fit()
    tree.check_row_order()
    tree.check_partition()
    assert tree.tokenizer.is_dir()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_describe_the_same_model(layout: str) -> None:
    official, other = open_tree(TINY), open_tree(TINY, layout=layout)
    read_everything(other)
    assert other.layout == layout
    assert other.name == "tiny-h3"
    for read in (Tree.text_encoder, Tree.dit, Tree.video_vae, Tree.audio_vae, Tree.shifts):
        assert read(other) == read(official)
    assert other.video_normalization() == official.video_normalization()


def test_a_folder_called_fl2va_is_named_after_its_parent() -> None:
    assert open_tree(TINY / "FL2VA") == open_tree(TINY)


def test_the_diffusers_layout_serves_when_there_is_no_official_one(model: Path) -> None:
    shutil.rmtree(model / "FL2VA")
    assert open_tree(model).layout == "diffusers"
    read_everything(open_tree(model))


def test_models_are_found_in_folders_and_as_folders(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = checkpoints.find_models([tmp_path / "nowhere", tmp_path, TINY])
    assert found == {"my model é": model, "tiny-h3": TINY}


def test_an_earlier_folder_hides_a_model_of_the_same_name(tmp_path: Path) -> None:
    first = Path(shutil.copytree(TINY, tmp_path / "tiny-h3"))
    assert checkpoints.find_models([tmp_path, TINY]) == {"tiny-h3": first}


def test_a_description_counts_what_the_files_hold() -> None:
    described = checkpoints.describe(TINY)
    assert json.loads(json.dumps(described)) == described
    assert described["problems"] == []
    assert described["layout"] == "official"
    part = described["components"]["transformer"]
    assert part["dtypes"] == {"F32": 65}
    assert part["layers"] == 3
    assert len(part["files"]) == 2
    assert described["components"]["text_encoder"]["layers"] == 50


def test_a_description_lists_every_problem_and_does_not_stop(model: Path) -> None:
    (model / "FL2VA/transformer/model-00002-of-00002.safetensors").unlink()
    edit(model / "FL2VA/audio_vae/config.json", latent_channels=None)
    shutil.rmtree(model / "FL2VA/tokenizer")
    shutil.rmtree(model / "FL2VA/processor")
    problems = checkpoints.describe(model)["problems"]
    assert len(problems) == 3
    assert "model-00002-of-00002.safetensors" in problems[0]


OFFICIAL_FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("transformer", {"hidden_size": None}, "'hidden_size' is missing, allowed is a whole number"),
    ("transformer", {"num_layers": "3"}, "'num_layers' is \"3\", allowed is a whole number"),
    ("transformer", {"num_layers": 0}, "'num_layers' is 0, allowed is a whole number from 1 up"),
    ("transformer", {"num_layers": True}, "'num_layers' is true"),
    ("transformer", {"norm_eps": 0}, "'norm_eps' is 0, allowed is a number above 0"),
    ("transformer", {"patch_size": [2, 2, 2]}, "'patch_size' is [2, 2, 2], allowed is [1, 2, 2]"),
    ("transformer", {"rope_inv_freq_len": 6}, "'rope_inv_freq_len' is 6, allowed is at most"),
    ("transformer", {"timestep_input_dim": 63}, "allowed is an even number"),
    ("transformer", {"adaln_out_features": 9}, "'adaln_out_features' is 9, allowed is 1152"),
    ("transformer", {"text_dim": 33}, "the components belong to different models"),
    ("text_encoder", {"text_config__num_hidden_layers": 49}, "is 49, allowed is 50 or more"),
    ("text_encoder", {"text_config__head_dim": None}, "'text_config.head_dim' is missing"),
    ("text_encoder", {"text_config__num_key_value_heads": 2}, "is 2, allowed is a divisor of"),
    ("text_encoder", {"text_config__hidden_act": "gelu"}, 'allowed is "silu"'),
    ("text_encoder", {"text_config__rope_theta": None}, "'text_config.rope_parameters' is missing"),
    ("video_vae", {"vae_clip_length": 16}, "'vae_clip_length' is 16, allowed is 17"),
    ("video_vae", {"vae_tile_overlap_min": 256}, "allowed is less than the tile size 256"),
    ("video_vae", {"latents_mean": [0.5]}, "'latents_mean' is [0.5], allowed is a list of 8"),
    ("video_vae", {"latents_std": [0.0] * 8}, "allowed is a list of 8 numbers above 0"),
    ("video_vae", {"source_path": "../../x"}, "names '../../x', outside the folder"),
    ("video_vae/source", {"use_vit_decoder": False}, "'use_vit_decoder' is false"),
    (
        "video_vae/source",
        {"vit_decoder_kwargs__rope_dim_ratio": 1e308},
        "allowed is a number above",
    ),
    ("video_vae/source", {"vit_decoder_kwargs": 3}, "'vit_decoder_kwargs' is 3, allowed is an"),
    ("video_vae/source", {"vit_decoder_kwargs__rope_dim_ratio": 0.5}, "a multiple of 6"),
    ("audio_vae", {"sample_rate": 48000}, "'sample_rate' is 48000, allowed is 32000"),
    ("audio_vae", {"source_metadata_path": "/etc/x"}, "outside the folder"),
]
DIFFUSERS_FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("transformer", {"ffn_dim": -1}, "'ffn_dim' is -1, allowed is a whole number from 1 up"),
    ("transformer", {"rope_theta": "big"}, "'rope_theta' is \"big\", allowed is a number above 0"),
    ("vae", {"spatial_downsample_factors": [2, 2]}, "allowed is factors of 16"),
    ("vae", {"decoder_num_layers": None}, "'decoder_num_layers' is missing"),
    ("vae", {"token_drop": 2}, "'token_drop' is 2, allowed is 3"),
    ("audio_vae", {"decoder_rates": [5, 5]}, "'decoder_rates' is [5, 5], allowed is factors of"),
    ("audio_vae", {"decoder_rates": [1] * 9}, "allowed is 1 to 8 whole numbers above 0"),
    ("audio_vae", {"resblock_dilation_sizes": [[1], [1], [2]]}, "allowed is 3 equal lists"),
    ("audio_vae", {"latent_channels": 5}, "'latents_mean' is"),
]


@pytest.mark.parametrize(("folder", "changes", "sentence"), OFFICIAL_FAULTS)
def test_an_odd_key_of_the_official_layout_is_one_sentence(
    model: Path, folder: str, changes: dict[str, Any], sentence: str
) -> None:
    path = model / "FL2VA" / folder / "config.json"
    edit(path, **changes)
    with pytest.raises(CheckpointError) as caught:
        read_everything(open_tree(model))
    assert sentence in str(caught.value)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize(("folder", "changes", "sentence"), DIFFUSERS_FAULTS)
def test_an_odd_key_of_the_diffusers_layout_is_one_sentence(
    model: Path, folder: str, changes: dict[str, Any], sentence: str
) -> None:
    edit(model / folder / "config.json", **changes)
    with pytest.raises(CheckpointError) as caught:
        read_everything(open_tree(model, layout="diffusers"))
    assert sentence in str(caught.value)
    assert str(model) in str(caught.value)


def remove_config(model: Path) -> None:
    (model / "FL2VA/transformer/config.json").unlink()


def break_config(model: Path) -> None:
    (model / "FL2VA/transformer/config.json").write_text("{]")


def list_for_config(model: Path) -> None:
    (model / "FL2VA/transformer/config.json").write_text("[1]")


def folder_for_config(model: Path) -> None:
    remove_config(model)
    (model / "FL2VA/transformer/config.json").mkdir()


def remove_shard(model: Path) -> None:
    (model / "FL2VA/text_encoder/model-00001-of-00002.safetensors").unlink()


def remove_shard_and_index(model: Path) -> None:
    remove_shard(model)
    (model / "FL2VA/text_encoder/model.safetensors.index.json").unlink()


def remove_weights(model: Path) -> None:
    (model / "FL2VA/video_vae/source/model.safetensors").unlink()


def remove_component(model: Path) -> None:
    shutil.rmtree(model / "FL2VA/audio_vae")


def escape_by_index(model: Path) -> None:
    path = model / "FL2VA/transformer/model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "../../x.safetensors"}}))


def empty_index(model: Path) -> None:
    path = model / "FL2VA/transformer/model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {}}))


def two_files_and_no_index(model: Path) -> None:
    folder = model / "FL2VA/audio_vae"
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")


def remove_tokenizer(model: Path) -> None:
    shutil.rmtree(model / "FL2VA/tokenizer")
    shutil.rmtree(model / "FL2VA/processor")


def pipe(model: Path, name: str) -> None:
    (model / "FL2VA" / name).unlink()
    os.mkfifo(model / "FL2VA" / name)


def pipe_for_config(model: Path) -> None:
    pipe(model, "transformer/config.json")


def pipe_for_shard(model: Path) -> None:
    pipe(model, "transformer/model-00001-of-00002.safetensors")


def long_name_in_index(model: Path) -> None:
    path = model / "FL2VA/transformer/model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "x" * 300}}))


def deep_config(model: Path) -> None:
    (model / "FL2VA/transformer/config.json").write_text("[" * 100_000)


def join_transformer(model: Path, name: str, prefix: str = "") -> Path:
    """Put the official transformer's shards into one file."""
    folder = model / "FL2VA/transformer"
    header, data = {}, b""
    for shard in sorted(folder.glob("*.safetensors")):
        whole = shard.read_bytes()
        begin = 8 + struct.unpack("<Q", whole[:8])[0]
        for tensor, entry in json.loads(whole[8:begin]).items():
            if tensor != "__metadata__":
                offsets = [offset + len(data) for offset in entry["data_offsets"]]
                header[prefix + tensor] = entry | {"data_offsets": offsets}
        data += whole[begin:]
        shard.unlink()
    (folder / "model.safetensors.index.json").unlink()
    text = json.dumps(header).encode()
    (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder / name


def conversion_for_comfyui(model: Path) -> None:
    join_transformer(model, "minimax_h3_fl2va_bf16.safetensors")


def prefixed_conversion(model: Path) -> None:
    join_transformer(model, "model.safetensors", "model.diffusion_model.")


def fused_in_diffusers_folder(model: Path) -> None:
    join_transformer(model, "model.safetensors").rename(model / "model.safetensors")
    shutil.rmtree(model / "FL2VA")
    for path in (model / "transformer").iterdir():
        if path.name != "config.json":
            path.unlink()
    (model / "model.safetensors").rename(model / "transformer/model.safetensors")


def other_partition(model: Path) -> None:
    edit(model / "FL2VA/model_index.json", _minimax_h3__partition="ref2va")


def odd_shift(model: Path) -> None:
    edit(model / "FL2VA/model_index.json", _minimax_h3__sigma_shift_scales__audio=0)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (remove_config, "config.json is missing"),
        (break_config, "config.json is not JSON"),
        (list_for_config, "config.json holds [1], allowed is a JSON object"),
        (folder_for_config, "config.json: is a folder"),
        (pipe_for_config, "config.json: is not a regular file"),
        (pipe_for_shard, "model-00001-of-00002.safetensors: is not a regular file"),
        (long_name_in_index, "File name too long"),
        (deep_config, "config.json is not JSON: it is nested too deeply"),
        (conversion_for_comfyui, "a single file may have the release's order of q, k and v or"),
        (fused_in_diffusers_folder, "a single file may have the release's order of q, k and v or"),
        (prefixed_conversion, "has the prefix of a conversion"),
        (remove_shard, "1 of 2 shards are missing: model-00001-of-00002.safetensors"),
        (remove_shard_and_index, "1 of 2 shards are missing: model-00001-of-00002.safetensors"),
        (remove_weights, "no safetensors file here"),
        (remove_component, "the model has no folder audio_vae/"),
        (escape_by_index, "names '../../x.safetensors', outside the folder"),
        (empty_index, "'weight_map' is empty"),
        (two_files_and_no_index, "several weight files and no index (a.safetensors, b.safet"),
        (remove_tokenizer, "the model has no folder tokenizer/"),
        (other_partition, '\'_minimax_h3.partition\' is "ref2va", allowed is "fl2va"'),
        (odd_shift, "'_minimax_h3.sigma_shift_scales.audio' is 0, allowed is a number above 0"),
    ],
)
def test_a_damaged_model_is_one_sentence(
    model: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    damage(model)
    with pytest.raises(CheckpointError) as caught:
        read_everything(open_tree(model))
    assert sentence in str(caught.value)


def test_shards_without_an_index_are_taken_when_all_are_there(model: Path) -> None:
    (model / "FL2VA/transformer/model.safetensors.index.json").unlink()
    assert len(open_tree(model).files("transformer")) == 2


def test_a_transformer_joined_from_the_releases_shards_is_taken(model: Path) -> None:
    join_transformer(model, "model.safetensors")
    read_everything(open_tree(model))


def test_a_description_of_pipes_does_not_wait_for_them(model: Path) -> None:
    """Opening a pipe blocks until somebody writes into it."""
    pipe_for_shard(model)
    pipe(model, "tokenizer/tokenizer.json")
    problems = checkpoints.describe(model)["problems"]
    assert [problem.rpartition(": ")[2] for problem in problems] == ["is not a regular file"] * 2


def test_a_sentence_about_a_path_that_is_no_text_can_be_printed() -> None:
    """A file's name may be any bytes; Python smuggles them through as surrogates."""
    sentence = str(CheckpointError(f"{os.fsdecode(b'bad-' + bytes([255]))}: no such file"))
    assert sentence.encode() == b"bad-\\udcff: no such file"


def test_a_model_cut_to_the_layers_that_are_run_is_fine(model: Path) -> None:
    edit(model / "FL2VA/text_encoder/config.json", text_config__num_hidden_layers=50)
    assert open_tree(model).text_encoder().layers == 50


def test_the_newer_spelling_of_the_rotary_settings_is_read(model: Path) -> None:
    path = model / "FL2VA/text_encoder/config.json"
    edit(path, text_config__rope_theta=None, text_config__rope_parameters={"rope_theta": 7.5})
    assert open_tree(model).text_encoder().rope_theta == 7.5


def test_tiling_that_is_switched_off_stays_off(model: Path) -> None:
    edit(model / "FL2VA/video_vae/config.json", vae_decoder_tiling=0)
    assert open_tree(model).video_vae().tile == 0


@pytest.mark.parametrize(
    ("path", "layout", "sentence"),
    [
        (TINY / "nowhere", None, "there is no such folder"),
        (TINY / "vae", None, "no model here (looked for transformer/ and FL2VA/transformer/)"),
        (TINY / "FL2VA", "diffusers", "has the official layout, not the diffusers one"),
    ],
)
def test_a_folder_without_a_model_says_what_was_looked_for(
    path: Path, layout: str | None, sentence: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_tree(path, layout=layout)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("length", [0, 7, 8, 100, 5000])
def test_a_header_cut_short_is_a_checkpoint_error(tmp_path: Path, length: int) -> None:
    whole = (TINY / "audio_vae/diffusion_pytorch_model.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(whole[:length])
    with pytest.raises(CheckpointError, match=r"cut\.safetensors"):
        read_header(path)


def test_a_file_cut_in_its_data_names_a_tensor(tmp_path: Path) -> None:
    whole = (TINY / "audio_vae/diffusion_pytorch_model.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="it is truncated"):
        read_header(path)
