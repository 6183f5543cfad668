"""A prompt is encoded once, whatever it is used for, and to the same bits."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h3farm.engine._native import TextEncoder
from h3farm.engine.embeddings import ENDING, Embeddings
from h3farm.engine.errors import DiskFull
from h3farm.engine.limits import Limits
from h3farm.engine.progress import Progress
from h3farm.engine.render import Engine, RenderResult
from h3farm.engine.spec import RenderSpec

TINY = Path(__file__).parent.parent / "golden" / "tiny-h3"
ROW = np.arange(12, dtype=np.float32).reshape(3, 4)


class Farm:
    """An engine that keeps embeddings, and counts what its text encoder does."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.kept = folder / "embeddings"
        self.engine = Engine(threads=1, embeddings=Embeddings(self.kept))
        self.encoded = 0
        encode = TextEncoder.encode

        def count(encoder: TextEncoder, ids: Any) -> Any:
            self.encoded += 1
            return encode(encoder, ids)

        monkeypatch.setattr(TextEncoder, "encode", count)

    def render(self, prompt: str, model: Path = TINY, **options: Any) -> RenderResult:
        wanted = {"prompt": prompt, "model": "tiny-h3", "width": 96, "height": 64, "frames": 22}
        spec = RenderSpec.from_json(wanted | {"steps": 1, "seed": 7, "keep_latents": True})
        return self.engine.render(
            spec,
            model=model,
            outputs=self.folder / "outputs",
            work=self.folder / "work",
            **options,
        )

    @property
    def opens(self) -> dict[str, int]:
        model = self.engine._model
        assert model is not None
        return dict(model.opens)


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    made = Farm(tmp_path, monkeypatch)
    yield made
    made.engine.close()


def latents(result: RenderResult) -> bytes:
    return (result.folder / "latents.safetensors").read_bytes()


@pytest.mark.slow
def test_a_prompt_is_encoded_once_and_gives_the_same_bits(farm: Farm) -> None:
    first, second = farm.render("a fox"), farm.render("a fox")
    assert farm.encoded == 1
    assert latents(first) == latents(second)
    assert first.saved == {"opens": 0, "bytes": 0}
    weights = sum(path.stat().st_size for path in TINY.glob("FL2VA/text_encoder/*.safetensors"))
    assert second.saved == {"opens": 1, "bytes": weights}
    farm.render("a hare")
    assert farm.encoded == 2


@pytest.mark.slow
def test_a_batch_opens_the_text_encoder_once_when_memory_is_short(farm: Farm) -> None:
    """All prompts that wait are encoded with the first one; then it is not mapped again."""
    prompts = [f"fox {number}" for number in range(4)]
    plain = [latents(farm.render(prompt)) for prompt in prompts]
    shutil.rmtree(farm.kept)
    farm.engine.close_model()
    farm.encoded = 0
    seen: list[Progress] = []
    short = Limits(one_network=True)
    limited = [
        farm.render(prompt, limits=short, ahead=prompts[number + 1 :], on_progress=seen.append)
        for number, prompt in enumerate(prompts)
    ]
    assert farm.encoded == 4
    assert farm.opens["text_encoder"] == 1
    assert farm.engine.models_opened == 2
    assert [latents(result) for result in limited] == plain
    assert sum(result.saved["opens"] for result in limited) == 3
    assert max(each.step for each in seen if each.phase == "encode" and not each.blocks) == 2


@pytest.mark.slow
def test_with_memory_to_spare_nothing_is_encoded_ahead_or_opened_again(farm: Farm) -> None:
    for prompt in ("fox 1", "fox 2", "fox 3"):
        farm.render(prompt, ahead=["fox 2", "fox 3", "fox 4"])
    assert farm.encoded == 3
    assert set(farm.opens.values()) == {1}
    assert farm.engine.models_opened == 1


@pytest.mark.slow
def test_a_cancel_is_seen_between_prompts(farm: Farm) -> None:
    def cancel(now: Progress) -> None:
        if now.phase == "encode" and now.step == 1 and not now.blocks:
            farm.engine.cancel()

    from h3farm.engine.errors import Cancelled

    with pytest.raises(Cancelled):
        farm.render(
            "fox", limits=Limits(one_network=True), ahead=["a", "b", "c"], on_progress=cancel
        )
    assert farm.encoded <= 3


@pytest.mark.slow
def test_another_text_encoder_is_another_embedding(farm: Farm) -> None:
    farm.render("a fox")
    copy = Path(shutil.copytree(TINY, farm.folder / "tiny-h3"))
    weights = next(copy.glob("FL2VA/text_encoder/*.safetensors"))
    os.utime(weights, (1, 1))
    farm.render("a fox", model=copy)
    assert farm.encoded == 2


@pytest.mark.slow
def test_a_damaged_embedding_is_made_again(farm: Farm) -> None:
    first = farm.render("a fox")
    (file,) = farm.kept.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:100], whole[:-1] + bytes([whole[-1] ^ 1])):
        file.write_bytes(damaged)
        assert latents(farm.render("a fox")) == latents(first)
    assert farm.encoded == 4


@pytest.mark.slow
def test_a_disk_that_takes_no_embedding_does_not_stop_the_render(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DiskFull("No space left on device")

    monkeypatch.setattr("h3farm.engine.embeddings.write_durably", refuse)
    assert farm.render("a fox").video.exists()


def test_the_ones_not_used_for_the_longest_time_go(tmp_path: Path) -> None:
    size = len(json.dumps({})) + 32 + 128 + ROW.nbytes  # digest, header of numpy, content
    kept = Embeddings(tmp_path, most_bytes=3 * size)
    for number, key in enumerate("abc"):
        kept.keep(key, ROW)
        os.utime(tmp_path / f"{key}{ENDING}", (number, number))
    assert kept.find("a") is not None  # used just now
    kept.keep("d", ROW)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "c", "d"]
    found = kept.find("d")
    assert found is not None
    assert (found == ROW).all()
