"""The recurrent layers ``narrowcast.lstm``, ``gru`` and ``rnn``: a whole sequence in one operator.

What a layer is apart from its tensors is a :class:`Recurrence`, kept in the call's attributes; its tensors, of which
some may be left out, have names (``OPERANDS``), and the attributes say which of them a call has. Layouts and the order
of the gates are those of ONNX: i, o, f, c of an LSTM, z, r, h of a GRU.

=========== ============================== ==============================================================
operand     shape                          what it is
=========== ============================== ==============================================================
x           [steps, batch, input]          the sequence
w           [directions, gates·hidden, input]  weights of the input
r           [directions, gates·hidden, state]  weights of the state
b           [directions, 2·gates·hidden]   the biases beside w, then those beside r; left out: 0
h0          [directions, batch, state]     the first hidden state; left out: 0
c0          [directions, batch, hidden]    the first cell state of an LSTM; left out: 0
lengths     [batch], integers              steps of every sample; left out: all. Beyond them outputs are 0, and a
                                           sample without steps has last states of 0
peepholes   [directions, 3·hidden]         what the gates i, o, f of an LSTM see of the cell (Gers et al. 2000)
projection  [directions, state, hidden]    from an LSTM's output to its hidden state (Sak et al. 2014)
=========== ============================== ==============================================================

Without a projection ``state`` is ``hidden``. The results are all hidden states [steps, directions, batch, state], the
last one [directions, batch, state] and, of an LSTM, the last cell state [directions, batch, hidden].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import relax

from ..dims import Dim, equal_dims
from ..errors import VerificationError
from ..ir import Expr, dims_of, dtype_of, shape_of
from .custom import register

OPERANDS = ("x", "w", "r", "b", "h0", "c0", "lengths", "peepholes", "projection")
# Operands that are 0 where they are left out.
OPTIONAL_ZEROS = frozenset({"b", "h0", "c0", "peepholes"})
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


@dataclass(frozen=True)
class Activation:
    """An elementwise function of a layer by the name of its operator in ONNX, in lower case, with its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


SIGMOID, TANH = Activation("sigmoid"), Activation("tanh")
DEFAULT_ACTIVATIONS = {"lstm": (SIGMOID, TANH, TANH), "gru": (SIGMOID, TANH), "rnn": (TANH,)}


@dataclass(frozen=True)
class Recurrence:
    """A recurrent layer apart from its tensors.

    cell : "lstm" (Hochreiter and Schmidhuber 1997), "gru" (Cho et al. 2014) or "rnn" (Elman 1990).
    directions : 1 or 2; the second one runs backwards in time.
    activations : those of every direction in turn: of the gates, the candidate and, for an LSTM, the output.
    reverse : whether a single direction runs backwards.
    clip : bound on the magnitude of what gates and candidate apply their activations to; None: none.
    input_forget : whether an LSTM's forget gate is one minus its input gate.
    linear_before_reset : whether a GRU's reset gate multiplies the candidate's product with the state (and its bias)
        instead of the state.
    """

    cell: str
    directions: int = 1
    activations: tuple[Activation, ...] = ()
    reverse: bool = False
    clip: float | None = None
    input_forget: bool = False
    linear_before_reset: bool = False

    def __post_init__(self) -> None:
        if not self.activations:
            object.__setattr__(self, "activations", DEFAULT_ACTIVATIONS[self.cell] * self.directions)

    @property
    def gates(self) -> int:
        return GATES[self.cell]

    def activations_of(self, direction: int) -> tuple[Activation, ...]:
        """The activations of one direction."""
        each = len(DEFAULT_ACTIVATIONS[self.cell])
        return self.activations[direction * each:(direction + 1) * each]

    def is_backward(self, direction: int) -> bool:
        """Whether a direction runs backwards in time."""
        return self.reverse or direction == 1


def recurrent_layer(form: Recurrence, **operands: Expr | None) -> relax.Call:
    """A call of the layer on the ``operands`` (shapes above) that are given; None stands for one that is not."""
    names = [name for name in OPERANDS if operands.get(name) is not None]
    attrs: dict[str, object] = {
        "operands": names,
        "activations": [a.name for a in form.activations],
        "alpha": [float(a.alpha) for a in form.activations],
        "beta": [float(a.beta) for a in form.activations],
        "reverse": form.reverse,
        "input_forget": form.input_forget,
        "linear_before_reset": form.linear_before_reset,
    }
    if form.clip is not None:
        attrs["clip"] = float(form.clip)
    return relax.Call(_OPS[form.cell], [operands[n] for n in names], tvm.ir.make_node("ir.DictAttrs", **attrs))


def recurrence_of(call: relax.Call) -> Recurrence:
    """The form of a recurrent layer's call."""
    attrs = call.attrs
    activations = zip(attrs["activations"], attrs["alpha"], attrs["beta"], strict=True)
    return Recurrence(
        cell=call.op.name.removeprefix("narrowcast."),
        directions=shape_of(operands_of(call)["w"])[0],
        activations=tuple(Activation(str(n), float(a), float(b)) for n, a, b in activations),
        reverse=bool(attrs["reverse"]),
        clip=float(attrs["clip"]) if "clip" in attrs else None,
        input_forget=bool(attrs["input_forget"]),
        linear_before_reset=bool(attrs["linear_before_reset"]),
    )


def operands_of(call: relax.Call) -> dict[str, Expr]:
    """The arguments of a recurrent layer's call by name; those that are left out are missing."""
    return dict(zip(map(str, call.attrs["operands"]), call.args, strict=True))


def is_recurrent(name: str | None) -> bool:
    """Whether an operator is a recurrent layer."""
    return name in _NAMES


def expected_dims(form: Recurrence, operands: Mapping[str, Expr]) -> dict[str, tuple[Dim, ...]]:
    """The shape that every operand has to have beside x, w and r, which are given, the last two with known extents."""
    x, (directions, rows, inputs) = dims_of(operands["x"]), shape_of(operands["w"])
    hidden = rows // form.gates
    state = shape_of(operands["r"])[-1] if "projection" in operands else hidden
    return {
        "x": (*x[:2], inputs),
        "w": (form.directions, form.gates * hidden, inputs),
        "r": (directions, rows, state),
        "b": (directions, 2 * rows),
        "h0": (directions, x[1], state),
        "c0": (directions, x[1], hidden),
        "lengths": (x[1],),
        "peepholes": (directions, 3 * hidden),
        "projection": (directions, state, hidden),
    }


def misfit(form: Recurrence, operands: Mapping[str, Expr]) -> tuple[str, str, str] | None:
    """The first operand whose type does not fit the others, what it has and what it should have; None if all fit."""
    expected = expected_dims(form, operands)
    for name, operand in operands.items():
        dtypes = ("int32", "int64") if name == "lengths" else ("float32",)
        if dtype_of(operand) not in dtypes or not equal_dims(dims_of(operand), expected[name]):
            return name, str(operand.ty), f"{dtypes[0]} {expected[name]}"
    return None


def _infer_type(call: relax.Call) -> relax.TupleType:
    form, operands = recurrence_of(call), operands_of(call)
    if wrong := misfit(form, operands):
        raise VerificationError(f"the operand {wrong[0]} of {call.op.name} does not fit the others", found=wrong[1],
                                expected=wrong[2])
    steps, batch, _ = dims_of(operands["x"])
    directions, rows, state = dims_of(operands["r"])
    shapes = [(steps, directions, batch, state), (directions, batch, state)]
    if form.cell == "lstm":
        shapes.append((directions, batch, rows // form.gates))
    return relax.TupleType([relax.TensorType(shape, "float32") for shape in shapes])


_OPS = {cell: register(f"narrowcast.{cell}", len(OPERANDS), _infer_type) for cell in GATES}
_NAMES = frozenset(f"narrowcast.{cell}" for cell in GATES)
