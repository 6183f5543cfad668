"""The one module that sees the compiled engine: handles become objects, codes become exceptions.

`_native` builds the networks on this. Objects close in the reverse order of their opening: at the
end of a `with`, when what they were opened on closes, or when the last reference goes.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from h3farm.engine._h3f import ffi, lib
from h3farm.engine.configs import Component
from h3farm.engine.errors import CheckpointError, EngineError, from_status

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]
Progress = Callable[[str, int, int], None]  # stage, done, total
Tap = Callable[[str, int, int, int, int, Floats], None]  # name, row, rows, total rows, cols, data

_ISAS = ("best", "scalar", "avx2", "avx512", "neon")
_LAYOUTS = ("official", "diffusers")
# In the order of h3f_dtype; None where numpy has no such type.
_DTYPES: dict[str, str | None] = {
    "F32": "f4",
    "F16": "f2",
    "BF16": "u2",  # widened in Checkpoint.read
    "F64": "f8",
    "I8": "i1",
    "U8": "u1",
    "I16": "i2",
    "U16": "u2",
    "I32": "i4",
    "U32": "u4",
    "I64": "i8",
    "U64": "u8",
    "BOOL": "?",
    "F8_E4M3": None,
    "F8_E5M2": None,
}
_COMPONENTS: dict[Component | None, int] = {
    None: lib.H3F_ANY,
    "text_encoder": lib.H3F_TEXT_ENCODER,
    "transformer": lib.H3F_TRANSFORMER,
    "video_vae": lib.H3F_VIDEO_VAE,
    "audio_vae": lib.H3F_AUDIO_VAE,
}
_C_TYPES = {np.dtype(np.float32): "float[]", np.dtype(np.float64): "double[]",
            np.dtype(np.int32): "int32_t[]", np.dtype(np.uint8): "uint8_t[]"}  # fmt: skip


def version() -> str:
    """The C library's version."""
    return _text(lib.h3f_version())


def _text(characters: Any) -> str:
    """A C string; bytes of a file name that are not UTF-8 stay visible."""
    return str(ffi.string(characters).decode("utf-8", "backslashreplace"))


def raw(function: str, *arguments: Any) -> Any:
    """Call a C function that cannot fail, or whose status the caller checks.

    Handles become their pointers, arrays pointers to their data, a list of dicts an array of
    structs; all of it stays alive during the call.
    """
    converted = [_to_c(argument) for argument in arguments]
    return getattr(lib, function)(*converted)


def _to_c(value: Any) -> Any:
    if isinstance(value, Handle):
        return value.pointer
    if isinstance(value, np.ndarray):
        return ffi.from_buffer(_C_TYPES[value.dtype], value)
    if isinstance(value, dict):
        return {key: _to_c(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_c(item) for item in value]
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def checked(
    name: str, array: Array, dtype: type[np.generic], *shape: int | None
) -> tuple[int, ...]:
    """The shape of an array that C may be given; ValueError for another type, shape or stride.

    None stands for any length.
    """
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{name} is {found}, not {np.dtype(dtype)}")
    if array.ndim != len(shape) or any(
        want not in (None, have) for want, have in zip(shape, array.shape, strict=True)
    ):
        wanted = " x ".join("any" if side is None else str(side) for side in shape)
        raise ValueError(f"{name} is {' x '.join(map(str, array.shape))}, not {wanted}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous")
    return array.shape


class Handle:
    """A C object that closes what was opened on it before itself."""

    def __init__(self, pointer: Any, free: str, *parents: Handle) -> None:
        """Own `pointer`, freed by the C function `free`; the parents must outlive it."""
        self._owned = ffi.gc(pointer, getattr(lib, free))
        self._parents = parents
        self._children: list[weakref.ref[Handle]] = []
        for parent in parents:
            alive = [ref for ref in parent._children if ref() is not None]
            parent._children = [*alive, weakref.ref(self)]

    @property
    def pointer(self) -> Any:
        """The C pointer; EngineError after close."""
        if self._owned is None:
            raise EngineError(f"this {type(self).__name__} is closed")
        return self._owned

    def close(self) -> None:
        """Free it, after everything opened on it. Closing twice is allowed."""
        for ref in reversed(self._children):
            child = ref()
            if child is not None:
                child.close()
        self._children = []
        if self._owned is not None:
            owned, self._owned = self._owned, None
            ffi.release(owned)

    def __enter__(self) -> Self:
        """The handle itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


class _Callbacks:
    """What C calls back into; apart from the Context, so that no cycle keeps that alive."""

    def __init__(self) -> None:
        self.context: Any = None
        self.progress: Progress | None = None
        self.tap: Tap | None = None
        self.error: BaseException | None = None

    def run(self, call: Callable[[], None]) -> None:
        """Run a callback; what it raises ends the C call and comes out of that."""
        if self.error is not None:
            return
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again by Context.check
            self.error = error
            lib.h3f_cancel(self.context)


@ffi.def_extern()  # type: ignore[untyped-decorator]
def h3f_python_progress(user: Any, stage: Any, done: int, total: int) -> None:
    """h3f_progress_fn."""
    callbacks = ffi.from_handle(user)
    if callbacks.progress is not None:
        callbacks.run(lambda: callbacks.progress(_text(stage), done, total))


@ffi.def_extern()  # type: ignore[untyped-decorator]
def h3f_python_tap(  # noqa: PLR0917 - as h3f_tap_fn has them
    user: Any, name: Any, row: int, rows: int, total_rows: int, cols: int, data: Any
) -> None:
    """h3f_tap_fn."""
    callbacks = ffi.from_handle(user)
    if callbacks.tap is not None:
        values = np.frombuffer(ffi.buffer(data, rows * cols * 4), np.float32)
        copied = values.reshape(rows, cols).copy()
        callbacks.run(lambda: callbacks.tap(_text(name), row, rows, total_rows, cols, copied))


class Context(Handle):
    """Threads, kernels and the cancel flag of one engine; used by one thread at a time."""

    def __init__(self, threads: int = 0, isa: str = "best") -> None:
        """`threads` 0: one per performance core; `isa` one of best, scalar, avx2, avx512, neon."""
        if isa not in _ISAS:
            raise ValueError(f"isa is {isa!r}, not one of {', '.join(_ISAS)}")
        options = ffi.new("h3f_options *")
        lib.h3f_options_default(options)
        options.threads, options.isa = threads, _ISAS.index(isa)
        made = ffi.new("h3f_context **")
        status = lib.h3f_context_new(options, made)
        if status != lib.H3F_OK:
            raise from_status(status, _text(lib.h3f_error(ffi.NULL)))
        super().__init__(made[0], "h3f_context_free")
        self._callbacks = _Callbacks()
        self._callbacks.context = made[0]
        self._user = ffi.new_handle(self._callbacks)
        self._lock = threading.RLock()  # cancel() against close(); a signal may call either
        self._asked = False

    def check(self, status: int) -> None:
        """Raise what a callback raised, or the exception for a failed `status`."""
        error, self._callbacks.error = self._callbacks.error, None
        if error is not None:
            if not self._asked:  # the flag was set by the callback, not by cancel()
                lib.h3f_cancel_clear(self.pointer)
            raise error
        if status != lib.H3F_OK:
            raise from_status(status, _text(lib.h3f_error(self.pointer)))

    def cancel(self) -> None:
        """Ask the running call to stop; from any thread, sticky until clear_cancel()."""
        with self._lock:
            self._asked = True
            if self._owned is not None:
                lib.h3f_cancel(self._owned)

    def clear_cancel(self) -> None:
        """Forget a cancel, before the next piece of work."""
        self._asked = False
        lib.h3f_cancel_clear(self.pointer)

    @property
    def cancelled(self) -> bool:
        """Whether a cancel is pending."""
        return bool(lib.h3f_cancelled(self.pointer))

    def on_progress(self, fn: Progress | None) -> None:
        """Have fn(stage, done, total) called on the calling thread; raising ends the C call."""
        self._callbacks.progress = fn
        lib.h3f_on_progress(self.pointer, lib.h3f_python_progress if fn else ffi.NULL, self._user)

    def on_tap(self, fn: Tap | None) -> None:
        """Have fn(name, row, rows, total_rows, cols, data [rows, cols]) see every intermediate."""
        self._callbacks.tap = fn
        lib.h3f_on_tap(self.pointer, lib.h3f_python_tap if fn else ffi.NULL, self._user)

    @property
    def threads(self) -> int:
        """Threads that compute."""
        return int(lib.h3f_threads(self.pointer))

    @property
    def isa(self) -> str:
        """The instruction set in use: "scalar", "avx2", ..."""
        return _text(lib.h3f_isa_name(self.pointer))

    @property
    def memory_peak(self) -> int:
        """The most bytes allocated at once since the last reset; mapped weights do not count."""
        return int(lib.h3f_memory_peak(self.pointer))

    def reset_memory_peak(self) -> None:
        """Measure the peak anew, from what is allocated now."""
        lib.h3f_memory_peak_reset(self.pointer)

    def close(self) -> None:
        """Close everything opened on it, then the context itself."""
        with self._lock:
            super().close()

    def call(self, function: str, *arguments: Any) -> None:
        """Call a C function that returns a status; see `raw` and `check`."""
        self.check(raw(function, *arguments))

    def open(self, function: str, *arguments: Any) -> Any:
        """Call a C function that opens something; the pointer that it made."""
        made = ffi.new(ffi.typeof(getattr(lib, function)).args[-1])
        self.call(function, *arguments, made)
        return made[0]

    def counts(self, function: str, *arguments: Any, results: int) -> tuple[int, ...]:
        """Call a C function whose last arguments are pointers to that many int32 results."""
        made = [ffi.new("int32_t *") for _ in range(results)]
        self.call(function, *arguments, *made)
        return tuple(result[0] for result in made)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor of a checkpoint; `name` is the official spelling whatever the file calls it."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class Checkpoint(Handle):
    """The mapped safetensors files of one component; None for `component` checks no names."""

    def __init__(
        self, context: Context, component: Component | None, paths: Sequence[Path]
    ) -> None:
        """Read the headers of all shards; CheckpointError names the file that is at fault."""
        texts = [ffi.new("char[]", os.fsencode(path)) for path in paths]
        opened = context.open(
            "h3f_checkpoint_open", context, _COMPONENTS[component], texts, len(texts)
        )
        super().__init__(opened, "h3f_checkpoint_close", context)
        self._context = context

    @property
    def layout(self) -> str:
        """How the files spell their tensors: "official" or "diffusers"."""
        return _LAYOUTS[lib.h3f_checkpoint_layout(self.pointer)]

    def tensors(self) -> list[TensorInfo]:
        """All tensors in file order."""
        found = []
        tensor = ffi.new("h3f_tensor *")
        for index in range(lib.h3f_checkpoint_count(self.pointer)):
            self._context.call("h3f_checkpoint_tensor", self, index, tensor)
            found.append(_tensor_info(tensor))
        return found

    def read(self, name: str) -> Array:
        """A copy of a tensor by its canonical name; bfloat16 becomes float32."""
        tensor = ffi.new("h3f_tensor *")
        self._context.call("h3f_checkpoint_find", self, name, tensor)
        info = _tensor_info(tensor)
        kind = _DTYPES[info.dtype]
        if kind is None:
            raise CheckpointError(f"{info.file}: tensor '{name}' is {info.dtype}, unknown to numpy")
        raw = np.frombuffer(ffi.buffer(tensor.data, info.bytes), kind).copy()
        if info.dtype == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.reshape(info.shape)


def _tensor_info(tensor: Any) -> TensorInfo:
    return TensorInfo(
        name=_text(tensor.name),
        file=_text(tensor.file),
        dtype=tuple(_DTYPES)[tensor.dtype],
        shape=tuple(tensor.shape[0 : tensor.ndim]),
        bytes=tensor.bytes,
    )
