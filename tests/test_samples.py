"""Data in every accepted form, and every way it can be wrong."""

import itertools

import numpy as np
import pytest
import torch

from narrowcast.errors import DataError
from narrowcast.ir import TensorSpec
from narrowcast.samples import Samples, example_of, split

ONE = (TensorSpec("x", (1, 3), "float32"),)
TWO = (TensorSpec("ids", (2, 4), "int64"), TensorSpec("mask", (2, 4), "float32"))
X = np.arange(30, dtype=np.float32).reshape(10, 3)
Y = np.arange(10)


def rows(samples: Samples) -> np.ndarray:
    return np.concatenate([s.inputs[0] for s in samples])


@pytest.mark.parametrize("data", [
    (X, Y),
    (torch.from_numpy(X).requires_grad_(), torch.from_numpy(Y)),
    torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=4),
    torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    [(x, int(y)) for x, y in zip(X, Y, strict=True)],
    [(x[None], np.array([y])) for x, y in zip(X, Y, strict=True)],
    [(X[:7], Y[:7]), [X[7:], Y[7:]]],
    [{"x": X[:7], "labels": Y[:7]}, {"x": X[7:], "labels": Y[7:]}],
    {"x": X, "y": Y},
    ((X,), Y),
    (X.astype(np.float64), Y.astype(np.int32)),
], ids=["arrays", "tensors", "loader", "dataset", "list", "batches of one", "uneven", "mappings", "mapping", "nested",
        "converted"])
def test_every_form_gives_the_same_samples(data):
    samples = Samples.of(data, ONE)
    assert len(samples) == 10 and not samples.notes
    assert all(s.inputs[0].shape == (1, 3) and s.inputs[0].dtype == np.float32 for s in samples)
    np.testing.assert_array_equal(rows(samples), X)
    np.testing.assert_array_equal(np.concatenate(samples.labels), Y)
    assert all(label.shape == (1,) for label in samples.labels)


@pytest.mark.parametrize("data", [X, [X], list(X), (x for x in X), [(X,)], {"x": X}, [X[:3], X[3:]]])
def test_unlabelled(data):
    samples = Samples.of(data, ONE)
    np.testing.assert_array_equal(rows(samples), X)
    assert samples.labels == [None] * 10


def test_batches_are_cut_and_joined_into_the_programs_batch():
    x, y = np.arange(21, dtype=np.float32).reshape(7, 3), np.arange(7)
    samples = Samples.of([(x[:3], y[:3]), (x[3:], y[3:])], (TensorSpec("x", (2, 3), "float32"),))
    assert len(samples) == 3
    np.testing.assert_array_equal(rows(samples), x[:6])
    np.testing.assert_array_equal(np.concatenate(samples.labels), y[:6])
    assert samples.notes == ("1 rows at the end of the data were left out: they do not fill a batch of 2",)


def test_several_inputs_by_position_and_by_name():
    ids, mask = np.arange(24).reshape(6, 4), np.ones((6, 4), np.float32)
    for data in [(ids, mask, Y[:6]), ((ids, mask), Y[:6]), [{"mask": mask, "ids": ids, "label": Y[:6]}],
                 [({"ids": ids.astype(np.int32), "mask": mask}, Y[:6])]]:
        samples = Samples.of(data, TWO)
        assert len(samples) == 3 and samples[2].inputs[0].dtype == np.int64
        np.testing.assert_array_equal(samples[2].inputs[0], ids[4:])
        np.testing.assert_array_equal(samples[2].label, Y[4:6])
    assert Samples.of((ids, mask), TWO).labels == [None] * 3


def test_labels_of_a_whole_sequence_stay_with_their_sample():
    specs = (TensorSpec("audio", (1, 8), "float32"),)
    data = [(np.ones((1, 8), np.float32), np.array([0, 1, 1])) for _ in range(4)]
    assert [s.label.shape for s in Samples.of(data, specs)] == [(3,)] * 4


def test_bfloat16_and_half_tensors_become_float32():
    for dtype in (torch.bfloat16, torch.float16):
        np.testing.assert_array_equal(rows(Samples.of(torch.from_numpy(X).to(dtype), ONE)), X)


def failing():
    yield X, Y
    raise RuntimeError("disk gone")


NAN = np.where(X == 7, np.nan, X)
BAD = {
    "none": (None, ONE, "no data"),
    "empty list": ([], ONE, "data is empty"),
    "empty array": (np.zeros((0, 3), np.float32), ONE, "is empty"),
    "number": (3, ONE, "cannot be iterated"),
    "text": ("mnist", ONE, "is text"),
    "text inside": ([("a", 1)], ONE, "does not hold numbers"),
    "rank": (X[:, :, None], ONE, "wrong rank"),
    "shape": (X[:, :2], ONE, "wrong shape"),
    "integers for floats": ((X.astype(np.uint8), Y), ONE, "wrong element type"),
    "floats for integers": ((np.ones((2, 4)), np.ones((2, 4))), TWO, "wrong element type"),
    "nan": ((NAN, Y), ONE, "NaN or infinity"),
    "inf": ((np.where(X == 7, np.inf, X), Y), ONE, "NaN or infinity"),
    "too large for float32": ((X.astype(np.float64) * 1e300, Y), ONE, "NaN or infinity"),
    "nan label": ((X, np.where(Y == 3, np.nan, Y)), ONE, "NaN or infinity"),
    "too few labels": ((X, Y[:9]), ONE, "different number of labels"),
    "too many arrays": ((X, X, X, Y), ONE, "wrong number of arrays"),
    "missing input": ([{"ids": np.ones((2, 4), int)}], TWO, "lacks the inputs mask"),
    "uneven inputs": ((np.ones((4, 4), int), np.ones((6, 4))), TWO, "different numbers of rows"),
    "labels sometimes": ([(X, Y), X], ONE, "has no labels, but those"),
    "label shapes": ([(X[:1].repeat(3, 0), np.ones((3, 1))), (X[:3], np.ones((3, 2)))],
                     (TensorSpec("x", (2, 3), "float32"),), "another shape than those before"),
    "raises": (failing(), ONE, "reading the data failed"),
    "ragged": ([[[1.0, 2.0], [3.0]]], ONE, "wrong"),
    "too small": (X[:1], (TensorSpec("x", (4, 3), "float32"),), "does not fill one call"),
    "integer range": ((np.full((2, 4), 300), np.ones((2, 4))), (TensorSpec("i", (2, 4), "uint8"), TWO[1]),
                      "do not fit"),
    "empty tuple": ([()], ONE, "cannot be taken apart"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused_with_one_clear_error(case):
    data, specs, text = BAD[case]
    with pytest.raises(DataError, match=text) as caught:
        Samples.of(data, specs)
    assert "\n  " in str(caught.value), "says what was found, expected or what to do"


def test_nan_names_input_batch_and_place():
    with pytest.raises(DataError, match=r"input 'x' of batch 1 holds NaN.*\n.*1 of 30 values, first at index \(2, 1\)"):
        Samples.of([(X, Y), (NAN, Y)], ONE)


def test_an_endless_iterable_is_refused(monkeypatch):
    monkeypatch.setattr("narrowcast.samples.MAX_BYTES", 1000)
    with pytest.raises(DataError, match="does not end"):
        Samples.of(itertools.repeat(X), ONE)


def numbers(samples: Samples) -> set[int]:
    return {int(label[0]) for label in samples.labels}


@pytest.mark.parametrize(("n", "sizes"), [(4, (1, 1, 2)), (100, (25, 25, 50)), (5000, (128, 512, 4360))])
def test_split_sizes_and_no_overlap(n, sizes):
    samples = Samples.of((np.zeros((n, 3), np.float32), np.arange(n)), ONE)
    parts = split(samples, seed=1)
    sets = [numbers(p) for p in (parts.calibration, parts.selection, parts.verification)]
    assert tuple(map(len, sets)) == sizes
    assert set.union(*sets) == set(range(n)), "nothing lost"
    again, other = split(samples, seed=1), split(samples, seed=2)
    assert numbers(again.verification) == sets[2]
    if n >= 100:
        assert numbers(other.verification) != sets[2]


def test_split_with_separate_calibration():
    samples = Samples.of((X, Y), ONE)
    calibration = Samples.of((np.zeros((300, 3), np.float32), np.arange(100, 400)), ONE)
    parts = split(samples, 0, calibration)
    assert numbers(parts.verification) == set(range(10))
    assert len(parts.calibration) == 128 and len(parts.selection) == 172
    assert numbers(parts.calibration) | numbers(parts.selection) == set(range(100, 400))


def test_split_of_too_few():
    with pytest.raises(DataError, match="too small to divide"):
        split(Samples.of((X[:3], Y[:3]), ONE), 0)
    with pytest.raises(DataError, match="separate calibration data is too small"):
        split(Samples.of((X, Y), ONE), 0, Samples.of((X[:1], Y[:1]), ONE))


def test_the_example_of_numbers_are_numbers():
    example = example_of([{"x": np.ones((4, 3), np.float32), "n": np.asarray(5), "label": 1}])
    assert {k: v.shape for k, v in example.items()} == {"x": (1, 3), "n": ()}
