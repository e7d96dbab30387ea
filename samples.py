"""Samples: the user's data, whatever form it has, as arrays that fit the program's inputs.

Every problem with the data is found here, before anything is calibrated or measured, and is a ``DataError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from .errors import DataError
from .ir import TensorSpec

LABEL_KEYS = ("labels", "label", "targets", "target", "y")
# Data that is held in memory; more than this is refused, so that an endless iterable does not take the machine down.
MAX_BYTES = 16 << 30

CALIBRATION_SAMPLES = 128
SELECTION_SAMPLES = 512

_HOW_TO_PASS = (
    "pass data=: a DataLoader or another iterable of (inputs, labels) batches, a tuple of arrays (x, y), or a list of "
    "samples; real inputs of the model, because ranges and accuracy are measured on them")


@dataclass(frozen=True)
class Sample:
    """One call of the program.

    inputs : an array per input of the program, of its shape and element type; symbolic dims have any extent.
    label : the labels of this call, or None where the data has none. The first dim is the batch's wherever the data
        came in batches.
    """

    inputs: tuple[np.ndarray, ...]
    label: np.ndarray | None = None


@dataclass(frozen=True)
class Samples(Sequence[Sample]):
    """Samples in the order of the data.

    items : the samples.
    notes : what was left out, a sentence each; empty where nothing was.
    """

    items: tuple[Sample, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Any, inputs: Sequence[TensorSpec]) -> Samples:
        """Read ``data`` to its end and make it fit ``inputs``.

        ``data`` is one of

        * an iterable of batches or samples (a DataLoader, a Dataset, a list, a generator), each of them ``(inputs,
          labels)``, an array, a tuple of as many arrays as the program has inputs (and one more for the labels), or a
          mapping from input names to arrays (labels under "labels", "label", "targets", "target" or "y");
        * a tuple of arrays ``(x, y)`` or ``(x1, x2, ..., y)``, one array, or one mapping: the whole data as one batch.

        A batch of exactly the inputs' shapes is one sample. Where only the leading dim differs it is split along it
        into parts of the program's own leading dim, labels alike; what is left of a batch is joined with the next one,
        and what is left at the end is dropped with a note. Where the leading dim of all inputs is the same symbol each
        row is a sample. A sample without the batch dim gets it where the program's is 1 or symbolic. float64, float16
        and bfloat16 become float32, integers become the input's integer type if they fit.

        Raises
        ------
        DataError : no data, empty data, wrong type, rank, shape or element type, NaN or infinity, labels of the
            wrong length.
        """
        if data is None:
            raise DataError("there is no data, and nothing is ever calibrated on random numbers",
                            expected="inputs of the model, with labels where the metric needs them", hint=_HOW_TO_PASS)
        reader = _Reader(tuple(inputs))
        for index, item in enumerate(_items(data)):
            where = f"batch {index}"
            reader.add(_take_apart(item, len(inputs), where), where)
        return cls(*reader.finish())

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Samples: ...
    def __getitem__(self, index: int | slice) -> Sample | Samples:
        return Samples(self.items[index], self.notes) if isinstance(index, slice) else self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def labels(self) -> list[np.ndarray | None]:
        return [s.label for s in self.items]

    def take(self, indices: Iterable[int]) -> Samples:
        """The samples at ``indices``, in that order."""
        return Samples(tuple(self.items[i] for i in indices), self.notes)


def reusable(data: Any) -> Any:
    """``data`` in a form that can be read more than once: an iterator is read into a list."""
    return list(data) if isinstance(data, Iterator) else data


def example_of(data: Any) -> Any:
    """The inputs of the first sample, batch 1 where they have dims, as ``compile`` takes example inputs.

    None where there is no data.

    What follows the inputs in a tuple is taken for the labels. A mapping stays one.
    """
    if data is None:
        return None
    first = next(iter(_items(data)), None)
    if first is None:
        raise DataError("the data is empty", found="no batch at all", expected="at least one sample", hint=_HOW_TO_PASS)
    if isinstance(first, tuple | list) and len(first) == 2 and isinstance(first[0], tuple | list | Mapping):
        first = first[0]
    elif isinstance(first, tuple | list) and len(first) > 1:
        first = first[:-1]
    if isinstance(first, Mapping):
        return {k: _first_row(v, k) for k, v in first.items() if k not in LABEL_KEYS}
    values = first if isinstance(first, tuple | list) else (first,)
    return tuple(_first_row(v, f"input {i}") for i, v in enumerate(values))


def _first_row(value: Any, name: str) -> np.ndarray:
    array = _as_numpy(value, name)
    row = array[:1] if array.ndim else array
    return row.astype(np.float32) if array.dtype == np.float64 else row


@dataclass(frozen=True)
class Split:
    """Three parts of the data that never overlap.

    calibration : ranges and statistics come from it.
    selection : plans are compared on it.
    verification : the drop that is reported and judged is measured on it; nothing was tuned on it.
    """

    calibration: Samples
    selection: Samples
    verification: Samples


def split(samples: Samples, seed: int, calibration: Samples | None = None) -> Split:
    """Divide the data at random, the same way for the same seed.

    Of n samples, min(128, n/4) are for calibration, min(512, n/4) for selection and the rest, at least half, for
    verification. Where a separate ``calibration`` set is given all of ``samples`` verify, and the set's n are divided
    into min(128, n/2) for calibration and up to 512 of the rest for selection.

    Raises
    ------
    DataError : fewer than 4 samples, or fewer than 2 in a separate calibration set.
    """
    pool, least, share = (samples, 4, 4) if calibration is None else (calibration, 2, 2)
    n = len(pool)
    if n < least:
        what = "data" if calibration is None else "separate calibration data"
        raise DataError(f"the {what} is too small to divide into parts that do not overlap", found=f"{n} samples",
                        expected=f"at least {least}, better some hundreds", hint="pass more samples")
    order = np.random.default_rng(seed).permutation(n)
    first = min(CALIBRATION_SAMPLES, n // share)
    second = first + min(SELECTION_SAMPLES, n // share if calibration is None else n - first)
    return Split(calibration=pool.take(np.sort(order[:first])), selection=pool.take(np.sort(order[first:second])),
                 verification=samples if calibration is not None else pool.take(np.sort(order[second:])))


@dataclass(frozen=True)
class _Batch:
    """One item of the data: its inputs in order, or one mapping by name, and its labels; not checked yet."""

    inputs: tuple[Any, ...]
    label: Any


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") or hasattr(value, "__dlpack__")


def _as_numpy(value: Any, where: str) -> np.ndarray:
    """NumPy arrays, torch tensors (any device, with gradient or without), numbers and lists of them as an array."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            if "bfloat16" in str(value.dtype):
                value = value.float()
            return value.numpy()
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise DataError(f"{where} is not an array", found=f"{type(value).__name__}: {error}",
                        expected="a NumPy array or a tensor", hint="convert it to a NumPy array") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where} does not hold numbers", found=f"{type(value).__name__} of {array.dtype}",
                        expected="a NumPy array or a tensor of numbers", hint="convert it to a NumPy array of numbers")
    return array


def _items(data: Any) -> Iterator[Any]:
    """The batches or samples of the data; the data itself where it is one batch."""
    if _is_array(data) or isinstance(data, Mapping) or (isinstance(data, tuple) and data and _is_array(data[-1])):
        yield data
        return
    if isinstance(data, str | bytes):
        raise DataError("the data is text", found=repr(data[:60]), expected="arrays", hint=_HOW_TO_PASS)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "__iter__"):
        data = map(data.__getitem__, range(len(data)))
    try:
        yield from data
    except DataError:
        raise
    except Exception as error:
        iterable = hasattr(data, "__iter__") or hasattr(data, "__next__")
        raise DataError("reading the data failed" if iterable else "the data cannot be iterated over",
                        found=f"{type(error).__name__}: {error}", hint=_HOW_TO_PASS) from error


def _take_apart(item: Any, count: int, where: str) -> _Batch:
    if isinstance(item, Mapping):
        key = next((k for k in LABEL_KEYS if k in item), None)
        return _Batch((dict(item),), item[key] if key is not None else None)
    if _is_array(item):
        return _Batch((item,), None)
    if not isinstance(item, tuple | list) or not item:
        raise DataError(f"{where} cannot be taken apart into inputs and labels",
                        found=type(item).__name__ if item else f"empty {type(item).__name__}",
                        expected="(inputs, labels), an array, or a mapping by input name", hint=_HOW_TO_PASS)
    if isinstance(item[0], tuple | list | Mapping) and len(item) <= 2:
        inputs = (dict(item[0]),) if isinstance(item[0], Mapping) else tuple(item[0])
        return _Batch(inputs, item[1] if len(item) == 2 else None)
    if len(item) == count:
        return _Batch(tuple(item), None)
    if len(item) == count + 1:
        return _Batch(tuple(item[:-1]), item[-1])
    raise DataError(f"{where} has the wrong number of arrays", found=len(item),
                    expected=f"{count} inputs, or {count} inputs and the labels", hint=_HOW_TO_PASS)


class _Reader:
    """Collects batches and cuts them into samples."""

    def __init__(self, specs: tuple[TensorSpec, ...]) -> None:
        self._specs = specs
        self._items: list[Sample] = []
        self._rest: Sample | None = None
        self._bytes = 0
        self._labelled: bool | None = None

    def add(self, batch: _Batch, where: str) -> None:
        arrays, added = self._inputs(batch, where)
        label = None if batch.label is None else _finite(_as_numpy(batch.label, f"the labels of {where}"),
                                                         f"the labels of {where}")
        if label is not None and added:
            label = label[None]
        if self._labelled is None:
            self._labelled = label is not None
        elif self._labelled != (label is not None):
            raise DataError(f"{where} {'has no labels, but those' if label is None else 'has labels, but none'} before "
                            "it have", hint="pass labels with every batch, or with none")
        self._count_bytes(arrays)
        leading = {s.shape[0] for s in self._specs if s.shape}
        by_row = len(leading) == 1 and all(s.shape for s in self._specs) and isinstance(next(iter(leading)), str)
        if not by_row and all(_fits(a.shape, s.shape) for a, s in zip(arrays, self._specs, strict=True)):
            self._items.append(Sample(arrays, None if label is None else np.atleast_1d(label)))
        else:
            self._split(Sample(arrays, label), where)

    def finish(self) -> tuple[tuple[Sample, ...], tuple[str, ...]]:
        rows = 0 if self._rest is None else self._rows(self._rest.inputs, "the rest")
        step = next((_step(s) for s in self._specs if s.shape), 1)
        if not self._items:
            found = f"{rows} rows, where one call of the program takes {step}" if rows else "no batch at all"
            raise DataError("the data is empty" if not rows else "the data does not fill one call of the program",
                            found=found, expected="at least one sample",
                            hint="pass more data (an iterator that was read before yields nothing)")
        note = f"{rows} rows at the end of the data were left out: they do not fill a batch of {step}"
        return tuple(self._items), (note,) if rows else ()

    def _inputs(self, batch: _Batch, where: str) -> tuple[tuple[np.ndarray, ...], bool]:
        """The batch's arrays, checked and converted; True where the batch dim was added."""
        values = batch.inputs
        if len(values) == 1 and isinstance(values[0], Mapping):
            missing = [s.name for s in self._specs if s.name not in values[0]]
            if missing:
                raise DataError(f"{where} lacks the inputs {', '.join(missing)}", found=sorted(map(str, values[0])),
                                expected=[s.name for s in self._specs], hint="name the arrays as the model's inputs")
            values = tuple(values[0][s.name] for s in self._specs)
        if len(values) != len(self._specs):
            raise DataError(f"{where} has the wrong number of inputs", found=len(values),
                            expected=f"{len(self._specs)}: {', '.join(s.name for s in self._specs)}", hint=_HOW_TO_PASS)
        arrays = [fit_dtype(_as_numpy(v, f"input {s.name!r} of {where}"), s, where)
                  for v, s in zip(values, self._specs, strict=True)]
        added = all(s.shape and _step(s) == 1 and _fits(a.shape, s.shape[1:])
                    for a, s in zip(arrays, self._specs, strict=True))
        if added:
            arrays = [a[None] for a in arrays]
        extents: dict[str, int] = {}
        for array, spec in zip(arrays, self._specs, strict=True):
            _check_shape(array, spec, where, extents)
        return tuple(arrays), added

    def _rows(self, arrays: Sequence[np.ndarray], where: str) -> int:
        """Rows of a batch whose arrays all have the same number of the program's calls in them."""
        calls = {s.name: a.shape[0] / _step(s) for a, s in zip(arrays, self._specs, strict=True) if s.shape}
        if len(set(calls.values())) != 1:
            raise DataError(f"the inputs of {where} have different numbers of rows",
                            found={s.name: a.shape for a, s in zip(arrays, self._specs, strict=True)},
                            expected={s.name: tuple(s.shape) for s in self._specs},
                            hint="pass the same number of rows for every input")
        return next(a.shape[0] for a, s in zip(arrays, self._specs, strict=True) if s.shape)

    def _split(self, batch: Sample, where: str) -> None:
        rows = self._rows(batch.inputs, where)
        if batch.label is not None and (batch.label.ndim == 0 or batch.label.shape[0] != rows):
            raise DataError(f"{where} has a different number of labels than inputs",
                            found=f"labels {batch.label.shape} for {rows} rows", expected=f"{rows} labels",
                            hint="pass one label per row of the inputs")
        if self._rest is not None:
            batch = self._join(self._rest, batch, where)
            rows = self._rows(batch.inputs, where)
        step = next(_step(s) for s in self._specs if s.shape)
        calls = rows // step
        for i in range(calls):
            self._items.append(self._cut(batch, slice(i, i + 1)))
        self._rest = self._cut(batch, slice(calls, None)) if rows % step else None

    def _cut(self, batch: Sample, calls: slice) -> Sample:
        """The part of a batch that ``calls`` (in calls of the program) covers."""
        def part(array: np.ndarray, step: int) -> np.ndarray:
            return array[calls.start * step: None if calls.stop is None else calls.stop * step]
        step = next(_step(s) for s in self._specs if s.shape)
        inputs = tuple(part(a, _step(s)) if s.shape else a for a, s in zip(batch.inputs, self._specs, strict=True))
        return Sample(inputs, None if batch.label is None else part(batch.label, step))

    @staticmethod
    def _join(first: Sample, second: Sample, where: str) -> Sample:
        if first.label is not None and second.label is not None and first.label.shape[1:] != second.label.shape[1:]:
            raise DataError(f"the labels of {where} have another shape than those before",
                            found=second.label.shape[1:], expected=first.label.shape[1:],
                            hint="pass labels of one shape")
        inputs = tuple(np.concatenate([a, b]) if a.ndim else b
                       for a, b in zip(first.inputs, second.inputs, strict=True))
        label = (np.concatenate([first.label, second.label])
                 if first.label is not None and second.label is not None else None)
        return Sample(inputs, label)

    def _count_bytes(self, arrays: Sequence[np.ndarray]) -> None:
        self._bytes += sum(a.nbytes for a in arrays)
        if self._bytes > MAX_BYTES:
            raise DataError("the data does not end, or is too large to hold in memory",
                            found=f"more than {MAX_BYTES >> 30} GiB", hint="pass a part: some thousand samples do")


def _fits(shape: tuple[int, ...], wanted: tuple[int | str, ...]) -> bool:
    """Whether a shape has the extents that are wanted as numbers."""
    return len(shape) == len(wanted) and all(isinstance(w, str) or w == d for d, w in zip(shape, wanted, strict=True))


def _step(spec: TensorSpec) -> int:
    """Rows that one call of the program takes: one where the leading dim is symbolic."""
    return spec.shape[0] if isinstance(spec.shape[0], int) else 1


def _check_shape(array: np.ndarray, spec: TensorSpec, where: str, extents: dict[str, int]) -> None:
    shape = tuple(spec.shape)
    details: dict[str, Any] = {
        "found": array.shape, "expected": f"{shape}, or any leading dim in place of {shape[0]}" if shape else shape,
        "hint": "bring the data into the shape of the example inputs that the model was imported with"}
    if array.ndim != len(shape):
        raise DataError(f"input {spec.name!r} of {where} has the wrong rank", **details)
    if not _fits(array.shape[1:], shape[1:]) or 0 in array.shape:
        empty = "is empty" if 0 in array.shape else "has the wrong shape"
        raise DataError(f"input {spec.name!r} of {where} {empty}", **details)
    for axis, (actual, name) in enumerate(zip(array.shape, shape, strict=True)):
        if isinstance(name, str) and extents.setdefault(name, actual) != actual:
            raise DataError(f"input {spec.name!r} of {where} disagrees with another input about the dim {name!r}",
                            found=f"{actual} on axis {axis}", expected=extents[name])


def _finite(array: np.ndarray, what: str) -> np.ndarray:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        raise DataError(f"{what} holds NaN or infinity", found=f"{len(bad)} of {array.size} values, first at index "
                        f"{tuple(int(i) for i in bad[0])}", expected="finite numbers", hint="clean the data")
    return array


def fit_dtype(array: np.ndarray, spec: TensorSpec, where: str) -> np.ndarray:
    """``array`` in the element type of ``spec``; DataError where the kinds differ or a value does not fit or is not
    finite."""
    what = f"input {spec.name!r} of {where}"
    wanted = np.dtype(spec.dtype)
    if array.dtype == wanted:
        return _finite(array, what)
    if array.dtype.kind == "f" and wanted.kind == "f":
        with np.errstate(over="ignore"):
            return _finite(_finite(array, what).astype(wanted), f"{what}, as {wanted},")
    if array.dtype.kind in "iu" and wanted.kind in "iu":
        info = np.iinfo(wanted)
        if array.size and not (info.min <= int(array.min()) and int(array.max()) <= info.max):
            raise DataError(f"{what} holds values that do not fit the input's type",
                            found=f"{array.min()} … {array.max()}", expected=f"{info.min} … {info.max} ({wanted})",
                            hint="check the data")
        return array.astype(wanted)
    raise DataError(f"{what} has the wrong element type", found=array.dtype.name, expected=wanted.name,
                    hint=f"convert it with .astype({wanted.name!r}), after scaling it as in training (images from 0 "
                         "to 255, say)")
