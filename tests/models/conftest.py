"""What the tests of the loaders share: skipping where a package or a program is missing."""

from __future__ import annotations

import shutil
from importlib import metadata

import pytest


@pytest.fixture
def needs(request: pytest.FixtureRequest) -> None:
    """Skip, with the reason, where something that the marker ``models`` names is not installed.

    ``@pytest.mark.models("package", program="flite")`` with any number of packages.
    """
    marker = request.node.get_closest_marker("models")
    for distribution in marker.args:
        try:
            metadata.version(distribution)
        except metadata.PackageNotFoundError:
            pytest.skip(f"the package {distribution} is not installed")
    program = marker.kwargs.get("program")
    if program and shutil.which(program) is None:
        pytest.skip(f"the program {program} is not installed")
