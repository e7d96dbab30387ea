"""Imports TVM the way narrowcast needs it; imported before anything else of the package.

* TVM's thread pool takes half of the logical CPUs unless ``TVM_NUM_THREADS`` is set before its first use: the default
  here is every CPU the process may run on.
* It binds its workers to CPUs unless ``TVM_BIND_THREADS`` is 0, the default here: free ones make way for what else
  runs.
* TVM's FFI imports PyTorch when it is installed. Loading and running a program needs none of it, so that import is held
  off while TVM is imported; a program that uses PyTorch imports it afterwards as usual.
"""

from __future__ import annotations

import importlib
import os
import sys


def available_cpus() -> int:
    """The number of CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def _import_tvm() -> None:
    os.environ.setdefault("TVM_NUM_THREADS", str(available_cpus()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    hold_off = "torch" not in sys.modules
    if hold_off:
        sys.modules["torch"] = None  # type: ignore[assignment]  # makes "import torch" raise ImportError
    try:
        importlib.import_module("tvm")
        importlib.import_module("tvm.relax")
    finally:
        if hold_off:
            del sys.modules["torch"]


_import_tvm()
