"""Two programs called from four threads at once (``make bench-threads``): right results, and no growth in memory."""

from __future__ import annotations

import threading
import time

import click
import numpy as np
import torch
from rich.console import Console

import narrowcast as nc
from narrowcast.models import bert, fashion_mnist

CALLERS = 4
# What the process may grow by after every thread has made its first calls: the allocators' slack.
GROWTH = 16 * 2**20


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096


def call_for(seconds: float, threads: int, console: Console) -> None:
    """Compile, call and compare; raises AssertionError where a result differs or memory grows."""
    rng = np.random.default_rng(0)
    images = [rng.standard_normal((1, 1, 28, 28), dtype=np.float32) for _ in range(8)]
    tokens = [(rng.integers(0, 30522, (1, 32)), np.ones((1, 32), np.int64)) for _ in range(8)]
    cnn = nc.compile(fashion_mnist.load(), data=images, precision="int8", num_threads=threads)
    encoder = nc.compile(bert.build(shape=bert.BertShape(layers=2)), example_inputs=tokens[0], precision="bf16",
                         data=tokens, num_threads=threads)
    expected = {"cnn": [cnn(x) for x in images], "encoder": [encoder(*x) for x in tokens]}
    calls, wrong, stop = [0] * CALLERS, [0] * CALLERS, threading.Event()

    def run(caller: int) -> None:
        generator = np.random.default_rng(caller)
        while not stop.is_set():
            i = int(generator.integers(8))
            if (caller + calls[caller]) % 2:
                same = np.array_equal(cnn(images[i]), expected["cnn"][i])
            else:
                same = np.array_equal(encoder(*tokens[i]), expected["encoder"][i])
            wrong[caller] += not same
            calls[caller] += 1

    workers = [threading.Thread(target=run, args=(caller,)) for caller in range(CALLERS)]
    for worker in workers:
        worker.start()
    time.sleep(seconds / 6)
    before, start = resident_bytes(), time.monotonic()
    with console.status(f"calling from {CALLERS} threads"):
        time.sleep(seconds)
    growth, elapsed = resident_bytes() - before, time.monotonic() - start
    stop.set()
    for worker in workers:
        worker.join()
    console.print(f"{sum(calls):,} calls of two programs of {threads} threads each from {CALLERS} threads, "
                  f"{elapsed:.0f} s: {sum(wrong)} wrong, {growth / 2**20:+.1f} MiB")
    assert not sum(wrong), "results differ from those of one thread"
    assert growth < GROWTH, "memory grows"


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="How long.")
@click.option("--threads", default=2, show_default=True, help="Threads of each program.")
def main(seconds: float, threads: int) -> None:
    """Call two programs from four threads; fails where a result is wrong or memory grows."""
    torch.set_num_threads(1)
    call_for(seconds, threads, Console())


if __name__ == "__main__":
    main()
