"""The selftest passes what is right and only that: each way to be wrong makes it fail."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from h3farm.engine.selftest import main

GOLDEN = Path(__file__).parents[1] / "golden"
ITS_STAGES = {"geometry", "random", "scheduler", "tokenizer", "text_encoder", "transformer",
              "video_vae", "audio_vae", "end_to_end"}  # fmt: skip


def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Exit code and report."""
    code = main(folder, as_json=True)
    return code, json.loads(capsys.readouterr().out)


def outcomes(report: dict[str, Any], verdict: str) -> list[dict[str, Any]]:
    return [line for line in report["lines"] if line["verdict"] == verdict]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A golden folder with a few cases and the float32 tree."""
    folder = tmp_path / "golden"
    folder.mkdir()
    shutil.copytree(GOLDEN / "tiny-h3", folder / "tiny-h3")
    manifest = json.loads((GOLDEN / "manifest.json").read_text())
    names = {"frames", "seed_42", "euler_3_8", "prompt_01", "text_00", "decode_one", "down",
             "t2va_small_layout", "t2va_small_rows", "t2va_small_step3"}  # fmt: skip
    manifest["cases"] = [case for case in manifest["cases"] if case["name"] in names]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for file in {case["file"] for case in manifest["cases"]}:
        shutil.copy(GOLDEN / file, folder / file)
    return folder


def edit_manifest(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["cases"])
    path.write_text(json.dumps(manifest))


def case(cases: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in cases if entry["name"] == name)


def overwrite(path: Path, tensor: str, value: bytes) -> None:
    """Replace the first bytes of a stored tensor."""
    data = bytearray(path.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    start = 8 + size + json.loads(data[8 : 8 + size])[tensor]["data_offsets"][0]
    data[start : start + len(value)] = value
    path.write_bytes(data)


def test_everything_due_passes_on_both_trees_in_both_layouts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, report = run(GOLDEN, capsys)
    assert outcomes(report, "FAIL") == outcomes(report, "unknown") == []
    assert code == 0
    passed = outcomes(report, "PASS")
    assert {line["stage"] for line in passed} == ITS_STAGES
    trees = {line["tree"] for line in passed if line["stage"] == "transformer"}
    names = [f"{tree}/{layout}" for tree in ("tiny-h3", "tiny-h3-bf16")
             for layout in ("official", "diffusers")]  # fmt: skip
    assert trees == {"", *names}
    # What is not due needs a picture or an encoder, and nothing else is put off.
    later = {(line["stage"], line["note"]) for line in outcomes(report, "not yet")}
    assert later == {
        ("image", "keyframes"),
        ("vision", "the vision tower"),
        ("text_encoder", "a picture in the text"),
        ("audio_vae", "encoding"),
        ("end_to_end", "keyframes and references"),
    }


def test_every_output_has_a_line_with_its_difference(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(small) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "geometry frames aligned  max|d| 0  atol 0  PASS" in lines
    assert any(
        line.startswith("transformer t2va_small_step3 [tiny-h3/diffusers] block.0.attn  max|d| ")
        for line in lines
    )
    assert "image down stretched  not yet  (keyframes)" in lines
    assert lines[-1].endswith(" passed, 0 failed, 2 not yet")


@pytest.mark.parametrize(
    ("file", "tensor", "value"),
    [
        ("geometry", "frames/aligned", struct.pack("<i", 6)),
        ("random", "seed_42/first_16", struct.pack("<f", 9.0)),
        ("scheduler", "euler_3_8/samples", struct.pack("<f", 9.0)),
        ("tokenizer", "prompt_01/ids", struct.pack("<i", 3)),
        ("text_encoder", "text_00/hidden_states.25", struct.pack("<f", 99.0)),
        ("transformer", "t2va_small_step3/block.1", struct.pack("<f", 99.0)),
        ("transformer", "t2va_small_step3/velocity", struct.pack("<f", float("nan"))),
        ("audio_vae", "decode_one/waveform", struct.pack("<f", 0.9)),
    ],
)
def test_a_changed_result_fails_and_is_the_only_one(
    small: Path, capsys: pytest.CaptureFixture[str], file: str, tensor: str, value: bytes
) -> None:
    overwrite(small / f"{file}.safetensors", tensor, value)
    code, report = run(small, capsys)
    assert code != 0
    failed = {(line["case"], line["output"]) for line in outcomes(report, "FAIL")}
    assert failed == {tuple(tensor.split("/"))}


def test_a_changed_weight_fails(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What passes was computed from the tree, not taken from the stored results."""
    path = small / "tiny-h3/FL2VA/audio_vae/model.safetensors"
    overwrite(path, "dec_in_proj.bias", struct.pack("<f", 50.0))
    code, report = run(small, capsys)
    assert code != 0
    failed = {(line["case"], line["tree"]) for line in outcomes(report, "FAIL")}
    assert failed == {("decode_one", "tiny-h3/official")}


def test_an_unknown_stage_fails(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_manifest(small, lambda cases: case(cases, "frames").update(stage="upscaler"))
    code, report = run(small, capsys)
    assert code != 0
    assert [line["case"] for line in outcomes(report, "unknown")] == ["frames"]


def test_a_case_of_no_known_kind_fails(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_manifest(small, lambda cases: case(cases, "decode_one").update(inputs={}))
    code, report = run(small, capsys)
    assert code != 0
    assert [line["case"] for line in outcomes(report, "unknown")] == ["decode_one"]


def test_an_unknown_output_fails(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rename(cases: list[dict[str, Any]]) -> None:
        outputs = case(cases, "t2va_small_step3")["outputs"]
        outputs["pickle"] = outputs.pop("packed")

    edit_manifest(small, rename)
    path = small / "transformer.safetensors"
    path.write_bytes(path.read_bytes().replace(b"small_step3/packed", b"small_step3/pickle"))
    code, report = run(small, capsys)
    assert code != 0
    assert {line["output"] for line in outcomes(report, "unknown")} == {"pickle"}


@pytest.mark.parametrize("file", ["random.safetensors", "image.safetensors"])
def test_a_missing_file_fails_even_for_a_case_of_later(
    small: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    (small / file).unlink()
    code, report = run(small, capsys)
    assert code != 0
    assert all(file in line["note"] for line in outcomes(report, "FAIL"))


def test_a_tensor_of_another_shape_than_the_manifest_says_fails(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_manifest(
        small, lambda cases: case(cases, "decode_one")["inputs"]["latent"].update(shape=[8, 1])
    )
    code, report = run(small, capsys)
    assert code != 0
    assert "the manifest says float32 [8, 1]" in outcomes(report, "FAIL")[0]["note"]


def test_a_folder_without_the_trees_fails(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(small / "tiny-h3")
    code, report = run(small, capsys)
    assert code != 0
    notes = {line["note"] for line in outcomes(report, "FAIL")}
    assert "no tree of the folder has a transformer" in notes


@pytest.mark.parametrize("content", [None, "[]", '{"cases": []}', "nonsense"])
def test_a_folder_that_proves_nothing_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    code, report = run(tmp_path, capsys)
    assert code != 0
    assert report["passed"] == 0
