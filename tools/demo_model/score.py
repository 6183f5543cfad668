"""Scores the demo model through the farm's own engine: prompt in, finished video out, measured
without a network.

    python -m tools.demo_model.score [--model DIR] [--count 64] [--out score.json]

Runs in the farm's environment (no torch). The finished mp4 is what is measured, as a viewer gets
it.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import imageio_ffmpeg
import numpy as np

from h3farm.engine.render import Engine
from h3farm.engine.spec import RenderSpec

from .measure import ASPECTS, Floats, Pixels, verdict
from .prompts import Trial, trials
from .world import SAMPLE_RATE

MODEL = Path(__file__).parents[2] / "models/h3-demo"


def read_video(path: Path, width: int, height: int) -> tuple[Pixels, Floats]:
    """Frames [F, H, W, 3] and sound [2, samples] of an mp4."""
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path)]
    picture = [*ffmpeg, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    sound = [*ffmpeg, "-f", "f32le", "-ac", "2", "-ar", str(SAMPLE_RATE), "-"]
    frames = subprocess.run(picture, capture_output=True, check=True).stdout
    wave = subprocess.run(sound, capture_output=True, check=True).stdout
    return (
        np.frombuffer(frames, np.uint8).reshape(-1, height, width, 3),
        np.frombuffer(wave, np.float32).reshape(-1, 2).T,
    )


def run_trial(
    engine: Engine, trial: Trial, model: Path, folder: Path, steps: int
) -> dict[str, bool]:
    """Render one trial and measure it."""
    spec = RenderSpec(
        prompt=trial.words,
        width=trial.shape.width,
        height=trial.shape.height,
        frames=trial.shape.frames,
        steps=steps,
        seed=trial.seed,
        model=model.name,
    )
    result = engine.render(spec, model=model, outputs=folder / "outputs", work=folder / "work")
    frames, wave = read_video(result.video, trial.shape.width, trial.shape.height)
    return verdict(frames, wave, trial.scene)


def score(model: Path, count: int, steps: int) -> dict[str, object]:
    """Fractions right for each aspect over `count` trials, and what went wrong."""
    verdicts, wrong = [], []
    engine = Engine()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for trial in trials(count):
                verdicts.append(run_trial(engine, trial, model, Path(folder), steps))
                missed = [aspect for aspect in ASPECTS if not verdicts[-1][aspect]]
                if missed:
                    wrong.append({"prompt": trial.words, "seed": trial.seed, "wrong": missed})
    finally:
        engine.close()
    scores = {aspect: round(float(np.mean([v[aspect] for v in verdicts])), 4) for aspect in ASPECTS}
    every = round(float(np.mean([all(v.values()) for v in verdicts])), 4)
    return {**scores, "all": every, "prompts": count, "steps": steps, "misses": wrong}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL, help="the model's folder")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12, help="denoiser evaluations")
    parser.add_argument("--out", type=Path, default=Path("score.json"))
    args = parser.parse_args()
    scores = score(args.model, args.count, args.steps)
    args.out.write_text(json.dumps(scores, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for aspect in (*ASPECTS, "all"):
        print(f"{aspect:12s} {scores[aspect]:.3f}")


if __name__ == "__main__":
    main()
