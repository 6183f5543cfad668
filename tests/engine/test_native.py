"""The compiled engine behind Python objects: arguments, lifetimes, callbacks, errors."""

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from h3farm.engine._native import (
    AudioVae,
    Checkpoint,
    Context,
    Dit,
    DitRun,
    Noise,
    TextEncoder,
    VideoVae,
    euler_step,
    pixels_to_rgb,
    sigmas,
    version,
)
from h3farm.engine.checkpoints import Tree, open_tree
from h3farm.engine.errors import Cancelled, CheckpointError, EngineError, NumericError
from h3farm.engine.packing import PackedSequence, build_t2va
from h3farm.engine.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
TREE = open_tree(GOLDEN / "tiny-h3")
IDS = np.array([5, 6, 7], np.int32)


@pytest.fixture
def context() -> Iterator[Context]:
    with Context(threads=2) as opened:
        yield opened


def text_encoder(context: Context, tree: Tree = TREE) -> TextEncoder:
    files = Checkpoint(context, "text_encoder", tree.files("text_encoder"))
    return TextEncoder(context, files, tree.text_encoder())


def dit(context: Context) -> Dit:
    return Dit(context, Checkpoint(context, "transformer", TREE.files("transformer")), TREE.dit())


def video_vae(context: Context) -> VideoVae:
    files = Checkpoint(context, "video_vae", TREE.files("video_vae"))
    return VideoVae(context, files, TREE.video_vae())


def audio_vae(context: Context) -> AudioVae:
    files = Checkpoint(context, "audio_vae", TREE.files("audio_vae"))
    return AudioVae(context, files, TREE.audio_vae())


def begin(context: Context, text_rows: int = 3) -> tuple[DitRun, PackedSequence]:
    sequence = build_t2va(text_rows, (2, 2, 2), 3)
    text = np.ones((text_rows, TREE.dit().text_dim), np.float32)
    return dit(context).begin(sequence, text, [(0.5, 7)]), sequence


def test_a_context_says_what_it_is(context: Context) -> None:
    assert context.threads == 2
    assert context.isa in {"scalar", "avx2", "avx512", "neon"}
    assert version().count(".") == 2


def test_an_instruction_set_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="isa is 'mmx', not one of best, scalar"):
        Context(isa="mmx")


def test_an_instruction_set_of_another_processor_is_refused() -> None:
    with Context() as best:
        other = "avx2" if best.isa == "neon" else "neon"
    with pytest.raises(EngineError, match=other):
        Context(isa=other)


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


WRONG_ARRAYS: list[tuple[str, Callable[[Context], object], str]] = [
    (
        "ids of another type",
        lambda c: text_encoder(c).encode(IDS.astype(np.int64)),  # type: ignore[arg-type]
        "ids is int64, not int32",
    ),
    (
        "no array",
        lambda c: text_encoder(c).encode([1, 2]),  # type: ignore[arg-type]
        "ids is list, not int32",
    ),
    (
        "strides",
        lambda c: text_encoder(c).encode(np.arange(8, dtype=np.int32)[::2]),
        "ids is not contiguous",
    ),
    (
        "axes",
        lambda c: text_encoder(c).encode(IDS[None]),
        "ids is 1 x 3, not any",
    ),
    (
        "text width",
        lambda c: dit(c).begin(build_t2va(3, (1, 2, 2), 1), floats(3, 5), [(0.5, 7)]),
        "text is 3 x 5, not 3 x 32",
    ),
    (
        "text rows",
        lambda c: dit(c).begin(build_t2va(3, (1, 2, 2), 1), floats(2, 32), [(0.5, 7)]),
        "text is 2 x 32, not 3 x 32",
    ),
    (
        "positions",
        lambda c: dit(c).begin(
            replace(build_t2va(3, (1, 2, 2), 1), positions=np.zeros((2, 3))),
            floats(3, 32),
            [(0.5, 7)],
        ),
        "positions is 2 x 3, not 6 x 3",
    ),
    (
        "video rows",
        lambda c: begin(c)[0].step(np.zeros(11, np.int32), floats(1, 32), floats(6, 4)),
        "video is 1 x 32, not 2 x 32",
    ),
    (
        "row times",
        lambda c: begin(c)[0].step(np.zeros(3, np.int32), floats(2, 32), floats(6, 4)),
        "row_times is 3, not 11",
    ),
    (
        "latent channels",
        lambda c: video_vae(c).decode_raw(floats(7, 3, 2, 2)),
        "latent is 7 x 3 x 2 x 2, not 8 x any x any x any",
    ),
    (
        "carry of another size",
        lambda c: video_vae(c).decode_clip(floats(8, 7, 2, 2), 0, floats(3, 5, 16, 16)),
        "carry is 3 x 5 x 16 x 16, not 3 x any x 32 x 32",
    ),
    (
        "audio channels",
        lambda c: audio_vae(c).decode(floats(2, 3, 5)),
        "latent is 2 x 3 x 5, not any x 4 x any",
    ),
    (
        "pixels",
        lambda c: pixels_to_rgb(c, floats(1, 2, 16, 16)),
        "pixels is 1 x 2 x 16 x 16, not 3 x any x any x any",
    ),
    (
        "velocity",
        lambda c: euler_step(sigmas(c, 3.0, 4), 0, floats(3), floats(4)),
        "velocity is 3, not 4",
    ),
    (
        "step beyond the grid",
        lambda c: euler_step(sigmas(c, 3.0, 4), 3, floats(3), floats(3)),
        "step is 3, not 0 to 2",
    ),
]


@pytest.mark.parametrize(
    ("call", "sentence"), [case[1:] for case in WRONG_ARRAYS], ids=[c[0] for c in WRONG_ARRAYS]
)
def test_a_wrong_array_never_reaches_c(
    context: Context, call: Callable[[Context], object], sentence: str
) -> None:
    with pytest.raises(ValueError, match="not") as caught:
        call(context)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_beyond_64_bits_is_refused(context: Context, seed: int) -> None:
    with pytest.raises(OverflowError):
        Noise(context, seed)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda c: text_encoder(c).encode(np.array([448], np.int32)), "448"),
        (lambda c: video_vae(c).plan(2), "2"),
        (lambda c: sigmas(c, 0.0, 4), "shift"),
        (lambda c: sigmas(c, 1.0, 1), "1"),
    ],
)
def test_an_argument_that_c_refuses_comes_with_its_words(
    context: Context, call: Callable[[Context], object], sentence: str
) -> None:
    with pytest.raises(EngineError) as caught:
        call(context)
    assert sentence in str(caught.value)
    assert caught.value.status == -3


def test_pixels_that_are_not_numbers_are_a_numeric_error(context: Context) -> None:
    with pytest.raises(NumericError):
        pixels_to_rgb(context, np.full((3, 1, 16, 16), np.nan, np.float32))


def test_closing_a_context_closes_what_was_opened_on_it() -> None:
    context = Context(threads=1)
    run, _ = begin(context)
    encoder = text_encoder(context)
    context.close()
    context.close()
    with pytest.raises(EngineError, match="this TextEncoder is closed"):
        encoder.encode(IDS)
    with pytest.raises(EngineError, match="this DitRun is closed"):
        run.step(np.zeros(11, np.int32), floats(2, 32), floats(6, 4))
    with pytest.raises(EngineError, match="this Context is closed"):
        context.memory_peak  # noqa: B018 - reading it is the test


def test_a_network_closes_before_its_checkpoint(context: Context) -> None:
    files = Checkpoint(context, "text_encoder", TREE.files("text_encoder"))
    encoder = TextEncoder(context, files, TREE.text_encoder())
    files.close()
    with pytest.raises(EngineError, match="closed"):
        encoder.encode(IDS)


def test_dropped_objects_free_their_memory(context: Context) -> None:
    """Without close(), the last reference frees: a run keeps its network, never the reverse."""
    begin(context)  # the context keeps its scratch from now on
    gc.collect()
    context.reset_memory_peak()
    before = context.memory_peak
    run, _ = begin(context)
    assert context.memory_peak > before
    del run
    gc.collect()
    context.reset_memory_peak()
    assert context.memory_peak == before


def test_an_exception_in_a_callback_comes_out_of_the_call(context: Context) -> None:
    encoder = text_encoder(context)

    def complain(_stage: str, done: int, _total: int) -> None:
        raise RuntimeError(f"at {done}")

    context.on_progress(complain)
    with pytest.raises(RuntimeError, match="at "):
        encoder.encode(IDS)
    assert not context.cancelled
    context.on_progress(None)
    assert encoder.encode(IDS).shape == (3, 32)


def test_a_keyboard_interrupt_in_a_callback_is_not_swallowed(context: Context) -> None:
    encoder = text_encoder(context)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    context.on_tap(interrupt)
    with pytest.raises(KeyboardInterrupt):
        encoder.encode(IDS)


def test_progress_reports_every_layer(context: Context) -> None:
    seen: list[tuple[str, int, int]] = []
    context.on_progress(lambda *values: seen.append(values))
    text_encoder(context).encode(IDS)
    assert seen[-1] == ("text_encoder", 50, 50)
    assert len({done for _, done, _ in seen}) >= 50


def test_cancel_from_another_thread_ends_the_call(context: Context) -> None:
    """The flag stays up until it is cleared, and the network is ready for the next call."""
    encoder = text_encoder(context)

    def cancel_elsewhere(_stage: str, done: int, _total: int) -> None:
        if done == 10:
            thread = threading.Thread(target=context.cancel)
            thread.start()
            thread.join()

    context.on_progress(cancel_elsewhere)
    with pytest.raises(Cancelled):
        encoder.encode(IDS)
    assert context.cancelled
    with pytest.raises(Cancelled):
        encoder.encode(IDS)
    context.clear_cancel()
    context.on_progress(None)
    assert np.isfinite(encoder.encode(IDS)).all()


def test_an_exception_does_not_hide_a_cancel_that_came_with_it(context: Context) -> None:
    encoder = text_encoder(context)

    def both(*_: object) -> None:
        context.cancel()
        raise RuntimeError("and this")

    context.on_progress(both)
    with pytest.raises(RuntimeError, match="and this"):
        encoder.encode(IDS)
    assert context.cancelled


def test_cancel_after_close_is_harmless() -> None:
    context = Context(threads=1)
    context.close()
    context.cancel()


def test_bfloat16_tensors_are_widened(context: Context) -> None:
    name = "blocks.0.attn.out_proj.weight"
    half = open_tree(GOLDEN / "tiny-h3-bf16")
    with (
        Checkpoint(context, "transformer", TREE.files("transformer")) as full,
        Checkpoint(context, "transformer", half.files("transformer")) as stored,
    ):
        assert {info.dtype for info in stored.tensors()} == {"BF16", "F32"}
        assert stored.layout == "official"
        widened = stored.read(name)
        assert widened.dtype == np.float32
        np.testing.assert_array_equal(widened, full.read(name))


def test_a_missing_file_is_named_whatever_its_name(context: Context, tmp_path: Path) -> None:
    path = tmp_path / "a b" / "größe 狐.safetensors"
    with pytest.raises(CheckpointError, match="größe 狐"):
        Checkpoint(context, None, [path])


def test_a_missing_tensor_is_named(context: Context) -> None:
    with (
        Checkpoint(context, "audio_vae", TREE.files("audio_vae")) as files,
        pytest.raises(CheckpointError, match="no_such_tensor"),
    ):
        files.read("no_such_tensor")


def test_a_config_that_the_tensors_contradict_is_refused(context: Context) -> None:
    config = replace(TREE.dit(), ffn=48)
    with (
        Checkpoint(context, "transformer", TREE.files("transformer")) as files,
        pytest.raises(CheckpointError, match="fc1"),
    ):
        Dit(context, files, config)


def test_noise_depends_on_the_seed_and_goes_on(context: Context) -> None:
    with Noise(context, 7) as one, Noise(context, 7) as same, Noise(context, 8) as other:
        first = one.draw((4, 5))
        np.testing.assert_array_equal(first, same.draw((4, 5)))
        assert not np.array_equal(first, one.draw((4, 5)))
        assert not np.array_equal(first, other.draw((4, 5)))


def test_two_contexts_give_the_same_numbers() -> None:
    with Context(threads=1) as one, Context(threads=3) as three:
        left, right = (text_encoder(context).encode(IDS) for context in (one, three))
    np.testing.assert_array_equal(left, right)


def velocities(context: Context, prompt: str) -> np.ndarray:
    ids = Tokenizer(TREE.tokenizer).encode(prompt)
    sequence = build_t2va(len(ids), (7, 4, 4), 37)
    hidden = text_encoder(context).encode(ids)
    with Noise(context, 1) as noise:
        rows = noise.draw((len(sequence.video_indices), 32)), noise.draw((74, 4))
    with dit(context).begin(sequence, hidden, [(0.1, 7)]) as run:
        return run.step(np.zeros(len(sequence.tags), np.int32), *rows)[0]


def test_the_prompt_steers_the_picture(context: Context) -> None:
    """Of the same noise two prompts make something else, and one prompt the same again."""
    fox = velocities(context, "A red fox walks through fresh snow.")
    again = velocities(context, "A red fox walks through fresh snow.")
    sea = velocities(context, "Waves break on black rocks while gulls cry.")
    np.testing.assert_array_equal(fox, again)
    assert np.abs(fox - sea).max() > 0.01 * np.abs(fox).max()
