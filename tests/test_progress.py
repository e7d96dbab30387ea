"""Progress bars."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from narrowcast import progress


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What the bars draw, as on a terminal of 100 columns."""
    text = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=text, force_terminal=True, width=100))
    return text


def test_a_bar_per_phase(screen: io.StringIO) -> None:
    with progress.Bars() as bars:
        bars("calibrate", 0, 4)
        bars("calibrate", 3, 4)
        bars("verify", 7, 7)
    shown = screen.getvalue()
    assert "calibrate" in shown and "3/4" in shown and "7/7" in shown and "left" in shown


def test_a_total_that_grows(screen: io.StringIO) -> None:
    with progress.Bars() as bars:
        bars("emit", 1, 1)
        bars("emit", 1, 3)
    assert "1/3" in screen.getvalue() and screen.getvalue().count("1/1") <= 1


def test_an_error_leaves_the_terminal_in_order(screen: io.StringIO) -> None:
    hide, show = "\x1b[?25l", "\x1b[?25h"
    with pytest.raises(KeyError), progress.Bars() as bars:
        bars("emit", 0, 1)
        raise KeyError
    shown = screen.getvalue()
    assert shown.rindex(show) > shown.rindex(hide), "the cursor is shown again"


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_are_wanted_on_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    monkeypatch.setattr(progress.sys, "stderr", Stream())
    assert progress.wanted() is terminal


def test_silent_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress.silent("emit", 0, 1)
    assert capsys.readouterr() == ("", "")
