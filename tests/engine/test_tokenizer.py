"""The tokenizer in the spellings that its files exist in, and what it says of what is missing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h3farm.engine.errors import CheckpointError
from h3farm.engine.tokenizer import Medium, Tokenizer

RELEASED = Path(__file__).parents[1] / "golden/tiny-h3/tokenizer"
H3_TOKENS = ("<d>", "</d>", "<|cutoff|>", "<|lyrics_start|>", "<|lyrics_end|>")
PROMPT = "It's <d>[English] café ﬁ\n\n 12 狐狸</d><|im_end|><think> <|caption_end|>!"


def edit(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RELEASED, tmp_path / "tokenizer"))


def without_tokenizer_json(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def without_vocab_and_merges(folder: Path) -> None:
    (folder / "vocab.json").unlink()
    (folder / "merges.txt").unlink()


def merges_as_texts(folder: Path) -> None:
    def change(value: Any) -> None:
        value["model"]["merges"] = [" ".join(pair) for pair in value["model"]["merges"]]

    edit(folder / "tokenizer.json", change)


def versioned_merges(folder: Path) -> None:
    without_tokenizer_json(folder)
    path = folder / "merges.txt"
    path.write_text("#version: 0.2\n" + path.read_text())


def windows_line_ends(folder: Path) -> None:
    without_tokenizer_json(folder)
    path = folder / "merges.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def special_tokens_as_objects(folder: Path) -> None:
    def change(value: Any) -> None:
        key = "additional_special_tokens"
        value[key] = [{"content": token, "lstrip": False} for token in value[key]]

    edit(folder / "tokenizer_config.json", change)


def extra_special_tokens(folder: Path) -> None:
    def change(value: Any) -> None:
        value["extra_special_tokens"] = value.pop("additional_special_tokens")

    edit(folder / "tokenizer_config.json", change)


def extra_special_tokens_by_name(folder: Path) -> None:
    def change(value: Any) -> None:
        tokens = value.pop("additional_special_tokens")
        value["extra_special_tokens"] = {f"token_{i}": token for i, token in enumerate(tokens)}

    edit(folder / "tokenizer_config.json", change)


def in_the_special_tokens_map(folder: Path) -> None:
    def change(value: Any) -> None:
        tokens = value.pop("additional_special_tokens")
        content = {"additional_special_tokens": tokens}
        (folder / "special_tokens_map.json").write_text(json.dumps(content))

    edit(folder / "tokenizer_config.json", change)


def in_added_tokens_json(folder: Path) -> None:
    without_tokenizer_json(folder)

    def change(value: Any) -> None:
        table = {v["content"]: int(k) for k, v in value.pop("added_tokens_decoder").items()}
        (folder / "added_tokens.json").write_text(json.dumps(table))

    edit(folder / "tokenizer_config.json", change)


def all_in_tokenizer_json(folder: Path) -> None:
    ids = {token: Tokenizer(folder).id(token) for token in (*H3_TOKENS, *CAPTIONS)}
    entries = [{"id": number, "content": token} for token, number in ids.items()]
    edit(folder / "tokenizer.json", lambda value: value["added_tokens"].extend(entries))
    (folder / "tokenizer_config.json").unlink()


def added_tokens_in_the_vocabulary(folder: Path) -> None:
    def change(value: Any) -> None:
        for token in value["added_tokens"]:
            value["model"]["vocab"][token["content"]] = token["id"]

    edit(folder / "tokenizer.json", change)


CAPTIONS = ("<|caption_start|>", "<|caption_end|>")


@pytest.mark.parametrize(
    "spelling",
    [
        without_tokenizer_json,
        without_vocab_and_merges,
        merges_as_texts,
        versioned_merges,
        windows_line_ends,
        special_tokens_as_objects,
        extra_special_tokens,
        extra_special_tokens_by_name,
        in_the_special_tokens_map,
        in_added_tokens_json,
        all_in_tokenizer_json,
        added_tokens_in_the_vocabulary,
    ],
)
def test_every_spelling_gives_the_same_ids(folder: Path, spelling: Callable[[Path], None]) -> None:
    expected = Tokenizer(RELEASED).encode(PROMPT).tolist()
    spelling(folder)
    assert Tokenizer(folder).encode(PROMPT).tolist() == expected


def test_an_added_token_may_leave_a_gap_in_the_ids(folder: Path) -> None:
    """The ids are the files', not the order in which they are read."""

    def change(value: Any) -> None:
        for token in value["added_tokens"]:
            if token["content"] == "<think>":
                token["id"] = 5000

    edit(folder / "tokenizer.json", change)
    edit(
        folder / "tokenizer_config.json",
        lambda value: value["added_tokens_decoder"].update(
            {"5000": value["added_tokens_decoder"].pop("431")}
        ),
    )
    tokenizer = Tokenizer(folder)
    assert tokenizer.encode("<think>").tolist() == [5000]
    assert tokenizer.id("<d>") == 5001


def test_nothing_merges_across_a_label_and_nothing_is_added() -> None:
    tokenizer = Tokenizer(RELEASED)
    ids, tags = tokenizer.present("fox", [Medium(kind="image", tokens=2)])
    label = tokenizer.encode("<Picture 1>: ")
    assert ids[: len(label)].tolist() == label.tolist()
    assert ids[-len(tokenizer.encode("fox")) :].tolist() == tokenizer.encode("fox").tolist()
    assert tags.tolist().count(0) == 4
    assert len(tokenizer.encode("")) == 0


def test_composed_and_decomposed_letters_are_the_same_prompt() -> None:
    tokenizer = Tokenizer(RELEASED)
    np.testing.assert_array_equal(tokenizer.encode("cafe\u0301"), tokenizer.encode("caf\u00e9"))


def drop_h3_tokens(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", lambda value: value.pop("additional_special_tokens"))


def drop_everything(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def drop_merges(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "merges.txt").unlink()


def odd_merge(folder: Path) -> None:
    edit(folder / "tokenizer.json", lambda value: value["model"]["merges"].insert(1, ["a"]))


def foreign_merge(folder: Path) -> None:
    edit(folder / "tokenizer.json", lambda value: value["model"]["merges"].append(["zq", "qz"]))


def shared_id(folder: Path) -> None:
    edit(folder / "tokenizer.json", lambda value: value["model"]["vocab"].update({"zzz": 3}))


def taken_id(folder: Path) -> None:
    edit(folder / "tokenizer.json", lambda value: value["added_tokens"][0].update({"id": 7}))


def other_model(folder: Path) -> None:
    edit(folder / "tokenizer.json", lambda value: value["model"].update({"type": "Unigram"}))


def broken_json(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")


def lost_byte(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    edit(folder / "vocab.json", lambda value: value.pop("!"))


def odd_token(folder: Path) -> None:
    edit(
        folder / "tokenizer_config.json",
        lambda value: value["additional_special_tokens"].append({"text": "<x>"}),
    )


def number_for_added_tokens(folder: Path) -> None:
    edit(folder / "tokenizer.json", lambda value: value.update(added_tokens=3))


def list_for_decoder(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", lambda value: value.update(added_tokens_decoder=[1]))


def text_for_special_tokens(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", lambda value: value.update(extra_special_tokens="abc"))


def merges_that_are_no_text(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "merges.txt").write_bytes(b"\xff")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (drop_h3_tokens, "the tokenizer lacks <d>, </d>, <|cutoff|>"),
        (number_for_added_tokens, "'added_tokens' is 3, allowed is a list"),
        (list_for_decoder, "'added_tokens_decoder' is [1], allowed is an object"),
        (text_for_special_tokens, "is 'abc', allowed is a list or an object"),
        (merges_that_are_no_text, "merges.txt is not UTF-8 text"),
        (drop_everything, "no vocabulary (tokenizer.json or vocab.json) here"),
        (drop_merges, "no merges (tokenizer.json or merges.txt) here"),
        (odd_merge, "merge 2 is ['a'], allowed are"),
        (foreign_merge, "vocabulary and merges disagree"),
        (shared_id, "share id 3"),
        (taken_id, "'<|endoftext|>' has id 407, elsewhere 7"),
        (other_model, "the model is 'Unigram', allowed is 'BPE'"),
        (broken_json, "tokenizer_config.json is not JSON"),
        (lost_byte, "lacks 1 of the 256 byte symbols"),
        (odd_token, "is no added token"),
    ],
)
def test_a_damaged_tokenizer_is_named(
    folder: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer(folder)
    assert sentence in str(caught.value)
    assert str(folder) in str(caught.value)
