"""narrowcast: precision scheduling for trained networks.

``compile`` takes a trained network, a target and an accuracy budget and returns a verified mixed-precision program.
"""

from . import _environment  # noqa: F401  (first: it decides how TVM is imported)
