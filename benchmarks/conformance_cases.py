"""ONNX's own test cases: the node tests and the packaged models, with their inputs and expected outputs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import load_model_tests

PACKAGED = ("simple", "pytorch-operator", "pytorch-converted")
"""The packaged sets of models, by ONNX's names."""


@dataclass(frozen=True)
class Case:
    """A model, what goes in and what must come out.

    group : "node" or the packaged set.
    operator : the operator that the case tests.
    rtol, atol : how far floats may be from the expected outputs; everything else is exact.
    """

    name: str
    group: str
    operator: str
    model: bytes
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    rtol: float
    atol: float

    @property
    def key(self) -> str:
        return f"{self.group}/{self.name}"


def collect(only: Sequence[str] = ()) -> list[Case]:
    """All cases whose inputs and outputs are tensors, without training and without expanded functions.

    ``only`` keeps the operators of these names (in any case) and the cases whose names contain one of them.
    """
    cases = [*_node_cases(), *(case for group in PACKAGED for case in _packaged_cases(group))]
    wanted = [w.lower() for w in only]
    return [c for c in cases if not wanted or any(w == c.operator.lower() or w in c.name for w in wanted)]


def _node_cases() -> list[Case]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    cases = []
    for case in found:
        model, data = case.model, case.data_sets
        if model is None or data is None or "_expanded" in case.name or "training" in case.name:
            continue
        ((inputs, outputs),) = data
        if not _are_tensors([*inputs, *outputs]):
            continue
        cases.append(Case(case.name, "node", _operator_of(case.name, model), model.SerializeToString(),
                          _arrays(inputs), _arrays(outputs), case.rtol, case.atol))
    return cases


def _packaged_cases(group: str) -> list[Case]:
    cases = []
    for case in load_model_tests(kind=group):
        folder = Path(str(case.model_dir))
        model = onnx.load(folder / "model.onnx")
        if any(v.type.WhichOneof("value") != "tensor_type" for v in [*model.graph.input, *model.graph.output]):
            continue
        for data in sorted(folder.glob("test_data_set_*")):
            inputs, outputs = (tuple(_read(p) for p in _in_order(data, kind)) for kind in ("input", "output"))
            cases.append(Case(f"{case.name}_{data.name.rsplit('_', 1)[1]}", group, _operator_of(case.name, model),
                              model.SerializeToString(), inputs, outputs, case.rtol, case.atol))
    return cases


def _in_order(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.rsplit("_", 1)[1]))


def _read(path: Path) -> np.ndarray:
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def _are_tensors(values: Sequence[object]) -> bool:
    return all(isinstance(v, (np.ndarray, np.generic)) for v in values)


def _arrays(values: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(v) for v in values)


def _operator_of(name: str, model: onnx.ModelProto) -> str:
    """The operator of the model that the case's name begins with, else that of its first node."""
    plain = re.sub("^test_|_", "", name).lower()
    kinds = [n.op_type for n in model.graph.node]
    named = [k for k in kinds if plain.startswith(k.lower())]
    return max(named, key=len) if named else kinds[0]
