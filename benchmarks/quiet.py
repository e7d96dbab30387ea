"""What the wrappers of other tools share: silence, and a clear error where a package is missing."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from narrowcast.errors import DataError


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the tools' progress bars and warnings out of the output; their errors are exceptions."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def need(package: str) -> None:
    """Raise DataError where a package of the ``bench`` extra is missing."""
    try:
        with quiet():
            __import__(package)
    except ImportError:
        raise DataError(f"the package {package} is not installed", hint='pip install "narrowcast[bench]"') from None
