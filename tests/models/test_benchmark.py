"""Finding the files of packages."""

from __future__ import annotations

import pytest

from narrowcast.errors import DataError
from narrowcast.models.benchmark import missing_package, package_file


def test_finds_a_file_of_a_distribution() -> None:
    assert package_file("numpy", "numpy/linalg/__init__.py").is_file()


def test_missing_distribution_names_the_extra() -> None:
    with pytest.raises(DataError, match=r"no-such-distribution is not installed(?s:.*)narrowcast\[models\]"):
        package_file("no-such-distribution", ".onnx")


@pytest.mark.parametrize(("ending", "found"), [(".absent", "0 files"), ("__init__.py", r"\d+ files")])
def test_other_than_one_file_is_refused(ending: str, found: str) -> None:
    with pytest.raises(DataError, match=found):
        package_file("numpy", ending)


def test_missing_package_says_how_to_install() -> None:
    assert "--no-deps foolbox" in str(missing_package("foolbox"))
