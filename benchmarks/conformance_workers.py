"""Runs cases in worker processes, so that a crash or a hang costs one case."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from .conformance_cases import Case
from .conformance_engines import Verdict, serve

Task = tuple[str, Case]


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    task: Task | None = None
    deadline: float = 0.0

    def give(self, task: Task, seconds: float) -> None:
        self.task, self.deadline = task, time.monotonic() + seconds
        self.connection.send(task)

    def stop(self) -> int | None:
        """Let the process end, or end it where it works on something; its exit code."""
        self.connection.close()
        if self.task is not None:
            self.process.kill()
        self.process.join()
        return self.process.exitcode


@dataclass
class Pool:
    """Worker processes forked from one that has everything imported.

    processes : how many run at a time.
    seconds : what one case may take.
    work : what a worker does: it receives tasks from its end of the connection and sends verdicts.
    """

    processes: int = 2
    seconds: float = 120.0
    work: Callable[[Connection], None] = serve
    _context: multiprocessing.context.ForkServerContext = field(init=False)

    def __post_init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([f"{__package__}.conformance_engines", "narrowcast.frontends.onnx"])

    def run(self, tasks: Iterable[Task], progress: Callable[[int], None]) -> dict[tuple[str, str], Verdict]:
        """A verdict for every task, by engine and the case's key; ``progress`` hears how many are done."""
        waiting = deque(tasks)
        results: dict[tuple[str, str], Verdict] = {}
        total = len(waiting)
        workers = [self._start() for _ in range(self.processes)]
        while len(results) < total:
            for worker in workers:
                if worker.task is None and waiting:
                    worker.give(waiting.popleft(), self.seconds)
            busy = [w for w in workers if w.task is not None]
            nearest = min(w.deadline for w in busy) - time.monotonic()
            ready = wait([w.connection for w in busy], timeout=max(nearest, 0.0))
            for worker in busy:
                verdict = self._verdict(worker, worker.connection in ready)
                if verdict is None or worker.task is None:
                    continue
                engine, case = worker.task
                results[engine, case.key] = verdict
                progress(len(results))
                if verdict.status in ("crash", "hang"):
                    workers[workers.index(worker)] = self._start()
                else:
                    worker.task = None
        for worker in workers:
            worker.stop()
        return results

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work_when_ready, args=(self.work, theirs), daemon=True)
        process.start()
        theirs.close()
        ours.recv()  # Ready: a case's time is none of the process's start.
        return _Worker(process, ours)

    def _verdict(self, worker: _Worker, ready: bool) -> Verdict | None:
        """What the worker answered, or how it ended; None while it works."""
        if ready:
            try:
                return worker.connection.recv()
            except (EOFError, OSError):
                worker.process.join()
                return Verdict("crash", _cause(worker.stop()))
        if time.monotonic() < worker.deadline:
            return None
        worker.stop()
        return Verdict("hang", f"no answer after {self.seconds:g} s")


def _work_when_ready(work: Callable[[Connection], None], connection: Connection) -> None:
    connection.send(None)
    work(connection)


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}"
