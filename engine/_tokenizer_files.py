"""A Qwen2 tokenizer's files, in the spellings that exist: vocabulary, merges, added tokens.

Vocabulary and merges stand in tokenizer.json or in vocab.json and merges.txt; a merge is "a b" or
["a", "b"]. Added tokens stand in tokenizer.json, added_tokens.json, `added_tokens_decoder` of
tokenizer_config.json, or merely in a list of special tokens: those take the next free ids in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from h3farm.engine._config_files import read_json, read_text, reading_errors
from h3farm.engine.errors import CheckpointError

Merge = tuple[str, str]
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A token that is cut out of the text before anything else; `id` None: the next free one."""

    content: str
    id: int | None = None
    special: bool = True
    normalized: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """All that a tokenizer's folder says; every added token has its id."""

    vocab: dict[str, int]
    merges: list[Merge]
    added: list[Added]
    ignore_merges: bool


def read(folder: Path) -> Files:
    """Read a tokenizer's folder; CheckpointError names the file and what is missing or odd."""
    whole = _object(folder / "tokenizer.json")
    model = whole.get("model")
    model = model if isinstance(model, dict) else {}
    if model.get("type", "BPE") != "BPE":
        raise CheckpointError(
            f"{folder / 'tokenizer.json'}: the model is {model['type']!r}, allowed is 'BPE'"
        )
    vocab = _vocab(folder, model)
    return Files(
        vocab=vocab,
        merges=_merges(folder, model),
        added=_with_ids(folder, vocab, _added(folder, whole)),
        ignore_merges=model.get("ignore_merges") is True,
    )


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one when there is no such file."""
    with reading_errors():
        if not path.exists():
            return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def _vocab(folder: Path, model: dict[str, Any]) -> dict[str, int]:
    path, vocab = folder / "tokenizer.json", model.get("vocab")
    if vocab is None:
        path = folder / "vocab.json"
        vocab = _object(path)
    if not isinstance(vocab, dict) or not vocab:
        raise CheckpointError(f"{folder}: no vocabulary (tokenizer.json or vocab.json) here")
    owners: dict[int, str] = {}
    for token, number in vocab.items():
        if not _is_id(number):
            raise CheckpointError(f"{path}: token {token!r} has id {number!r}, not a whole number")
        if number in owners:
            raise CheckpointError(f"{path}: {token!r} and {owners[number]!r} share id {number}")
        owners[number] = token
    return vocab


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _merges(folder: Path, model: dict[str, Any]) -> list[Merge]:
    path, entries = folder / "tokenizer.json", model.get("merges")
    if entries is None:
        path = folder / "merges.txt"
        if not path.exists():
            raise CheckpointError(f"{folder}: no merges (tokenizer.json or merges.txt) here")
        # Only "\n" ends a line: other separators are byte symbols of the vocabulary.
        entries = read_text(path).replace("\r\n", "\n").split("\n")
        if entries[0].startswith("#version"):
            entries = entries[1:]
        entries = [line for line in entries if line]
    if not isinstance(entries, list):
        raise CheckpointError(f"{path}: 'merges' is not a list")
    return [_merge(path, i, entry) for i, entry in enumerate(entries)]


def _merge(path: Path, index: int, entry: object) -> Merge:
    pair = entry.split(" ") if isinstance(entry, str) else entry
    if isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) and p for p in pair):
        return pair[0], pair[1]
    raise CheckpointError(
        f'{path}: merge {index + 1} is {entry!r}, allowed are "a b" and ["a", "b"]'
    )


def _added(folder: Path, whole: dict[str, Any]) -> list[Added]:
    """The added tokens by falling authority; the first that names a token decides on it."""
    config = _object(folder / "tokenizer_config.json")
    found: dict[str, Added] = {}
    for path, entry, number in _entries(folder, whole, config):
        token = _token(path, entry, number)
        known = found.setdefault(token.content, token)
        if known.id is None and token.id is not None:
            found[token.content] = replace(known, id=token.id)
        elif token.id not in (None, known.id):
            raise CheckpointError(
                f"{path}: token {token.content!r} has id {token.id}, elsewhere {known.id}"
            )
    return list(found.values())


def _entries(
    folder: Path, whole: dict[str, Any], config: dict[str, Any]
) -> Iterator[tuple[Path, object, object]]:
    """(file, entry, id or None) of every added token, those with ids first."""
    path = folder / "tokenizer.json"
    for entry in _collection(path, whole, "added_tokens", list):
        yield path, entry, entry.get("id") if isinstance(entry, dict) else None
    path = folder / "tokenizer_config.json"
    for number, entry in sorted(
        _collection(path, config, "added_tokens_decoder", dict).items(),
        key=lambda item: _number(path, item[0]),
    ):
        yield path, entry, _number(path, number)
    path = folder / "added_tokens.json"
    for content, number in _object(path).items():
        yield path, content, number
    for path in (folder / "tokenizer_config.json", folder / "special_tokens_map.json"):
        settings = config if path.name == "tokenizer_config.json" else _object(path)
        for entry in _listed(path, settings):
            yield path, entry, None


def _collection(path: Path, settings: dict[str, Any], key: str, *kinds: type) -> Any:
    """A list or object below a key, an empty one when there is none."""
    value = settings.get(key)
    if value is None:
        return kinds[0]()
    if not isinstance(value, kinds):
        allowed = " or ".join("a list" if kind is list else "an object" for kind in kinds)
        raise CheckpointError(f"{path}: '{key}' is {value!r}, allowed is {allowed}")
    return value


def _listed(path: Path, settings: dict[str, Any]) -> Iterator[object]:
    """Special tokens that are named without an id, in the order in which they take one."""
    for name in _NAMED:
        if settings.get(f"{name}_token"):
            yield settings[f"{name}_token"]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = _collection(path, settings, key, list, dict)
        yield from value.values() if isinstance(value, dict) else value


def _number(path: Path, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CheckpointError(
            f"{path}: 'added_tokens_decoder' has the key {text!r}, allowed is an id"
        ) from None


def _token(path: Path, entry: object, number: object) -> Added:
    if isinstance(entry, str):
        entry = {"content": entry}
    content = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(content, str) or not content:
        raise CheckpointError(
            f"{path}: {entry!r} is no added token, allowed are a text and an object with 'content'"
        )
    if number is not None and not _is_id(number):
        raise CheckpointError(f"{path}: token {content!r} has id {number!r}, not a whole number")
    flags = ("special", "normalized", "single_word", "lstrip", "rstrip")
    return Added(
        content=content,
        id=number if isinstance(number, int) else None,
        **{flag: bool(entry[flag]) for flag in flags if flag in entry},
    )


def _with_ids(folder: Path, vocab: dict[str, int], added: list[Added]) -> list[Added]:
    """Give each token its id: its own, the vocabulary's, or the next free one."""
    owners = {number: token for token, number in vocab.items()}
    for token in added:
        if token.id is None:
            continue
        owner = owners.setdefault(token.id, token.content)
        if owner != token.content or vocab.get(token.content, token.id) != token.id:
            raise CheckpointError(
                f"{folder}: added token {token.content!r} has id {token.id}, which the vocabulary "
                f"gives to {owner!r}"
            )
    free = max(owners) + 1
    done = []
    for token in added:
        number = token.id if token.id is not None else vocab.get(token.content)
        if number is None:
            number, free = free, free + 1
        done.append(replace(token, id=number))
    return done
