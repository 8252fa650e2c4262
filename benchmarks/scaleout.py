"""How a sweep scales on Dask: python benchmarks/scaleout.py [--replicas 20000] [--workers 1,2,4] [--delays 0,50].

Scheduler and workers are processes of their own, so that the driver's processor time is its own. A slow network is a
proxy on loopback that hands every byte on after a delay, in either direction, between the driver and the scheduler and
between the workers and the scheduler. Efficiency is the time that tasks took on the workers over the time that as many
workers, but no more than there are cores, had. `--points` theory points go the same way. Writes
benchmarks/results/scaleout.json and scaleout.md; with `--out` elsewhere.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from firststep.experiment import parse, run  # noqa: E402 - not before the lines above
from firststep.store import open_store  # noqa: E402

RESULTS = Path(__file__).parent / "results"
# A small replica: some three milliseconds.
SWEEP = """
title = "Many small replicas"
[problem]
activation = "relu"
teacher = "h1 + h2/sqrt(2)"
noise_std = 0.5
[sizes]
n_samples = 150
dim = 30
width = 100
[sweep]
step_exponent = [0.2, 0.4]
ridge = [0.1, 1.0]
[simulation]
replicas = {replicas}
"""
# Cells of 40 step sizes and 40 ridges, one for each noise.
CELL = 1600
THEORY = """
title = "Many points of the theory"
[problem]
activation = "tanh"
teacher = "h1 + h3/sqrt(6)"
[sizes]
n_samples = 2000
dim = 1000
width = 1500
[sweep]
noise_std = {{ start = 0.1, stop = 1.0, count = {cells} }}
step_exponent = {{ start = 0.0, stop = 0.45, count = 40 }}
ridge = {{ start = 0.01, stop = 1.0, count = 40, log = true }}
[[theory]]
name = "unified"
"""


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Hand on what comes, each piece so much later; more pieces may be under way at once."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def send() -> None:
        while True:
            due, piece = await waiting.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not piece:
                writer.close()
                return
            writer.write(piece)
            await writer.drain()

    sender = asyncio.create_task(send())
    try:
        while piece := await reader.read(2**16):
            waiting.put_nowait((time.monotonic() + delay, piece))
    except ConnectionError:
        pass
    waiting.put_nowait((time.monotonic() + delay, b""))
    await asyncio.wait([sender])


async def _proxy(port: int, delay: float) -> None:
    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pump(reader, there[1], delay), _pump(there[0], writer, delay))

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def process(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    started = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


@contextmanager
def cluster(workers: int, delay: float) -> Iterator[tuple[str, int]]:
    """Address of a scheduler with so many workers behind a slow network, and its process id."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "scheduler.json"
        quiet = "--no-dashboard", "--host", "127.0.0.1"
        scheduler = stack.enter_context(
            process(
                "-m", "distributed.cli.dask_scheduler", "--port", "0", *quiet, "--scheduler-file", str(file)
            )
        )
        while not file.exists() or not file.read_text():
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        if delay:
            port = address.rpartition(":")[2]
            proxy = stack.enter_context(process(__file__, "--proxy", port, str(delay)))
            assert proxy.stdout is not None
            address = f"tcp://127.0.0.1:{int(proxy.stdout.readline())}"
        options = "--nthreads", "1", "--no-nanny", *quiet, "--local-directory", str(folder)
        for _ in range(workers):
            stack.enter_context(process("-m", "distributed.cli.dask_worker", address, *options))
        wait_for_workers(address, workers)
        yield address, scheduler.pid


def wait_for_workers(address: str, count: int) -> None:
    from distributed import Client

    client = Client(address)
    client.wait_for_workers(count)
    # Imports are no part of a sweep.
    client.run(lambda: __import__("firststep.experiment.work", fromlist=["work"]) and None)
    client.close()


def cpu_of(pid: int) -> float:
    """Processor seconds of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(text: str, workers: int, delay: float) -> dict[str, Any]:
    """One sweep on a cluster of its own."""
    with tempfile.TemporaryDirectory() as folder, cluster(workers, delay / 1000) as (address, scheduler):
        with open_store(Path(folder) / "points.db") as store:
            wall, cpu, other = time.perf_counter(), time.process_time(), cpu_of(scheduler)
            run(parse(text), store, scheduler=address)
            wall, cpu, other = (
                time.perf_counter() - wall,
                time.process_time() - cpu,
                cpu_of(scheduler) - other,
            )
            assert not store.failures()
            spent = store.spent()
        busy = min(workers, os.cpu_count() or 1)
        return {
            "workers": workers,
            "delay_ms": delay,
            "tasks": len(spent),
            "wall": wall,
            "driver_ms": 1000 * cpu / len(spent),
            "scheduler_ms": 1000 * other / len(spent),
            "task_ms": 1000 * sum(spent) / len(spent),
            "efficiency": 100 * sum(spent) / (busy * wall),
            "load": os.getloadavg()[0],
        }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| what | workers | delay, ms | tasks | wall, s | tasks/s | ms of a task | driver's CPU, ms a task "
        "| scheduler's | efficiency | load |",
        "| --- " * 11 + "|",
    ]
    lines += [
        f"| {row['what']} | {row['workers']} | {row['delay_ms']:g} | {row['tasks']} | {row['wall']:.1f} "
        f"| {row['tasks'] / row['wall']:.0f} | {row['task_ms']:.1f} | {row['driver_ms']:.2f} "
        f"| {row['scheduler_ms']:.2f} | {row['efficiency']:.0f} % | {row['load']:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=20_000, help="replicas of the sweep (20000)")
    parser.add_argument("--points", type=int, default=100_000, help="points of the theory (100000)")
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers (1,2,4)")
    parser.add_argument("--delays", default="0,50", help="milliseconds that the network takes one way (0,50)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for scaleout.json and scaleout.md")
    parser.add_argument("--proxy", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.proxy:
        asyncio.run(_proxy(int(arguments.proxy[0]), float(arguments.proxy[1])))
        return
    sweeps = {}
    if arguments.replicas:
        sweeps["replicas, n, d, N = 150, 30, 100"] = SWEEP.format(replicas=arguments.replicas)
    if arguments.points:
        sweeps[f"theory, {CELL} points a task"] = THEORY.format(cells=max(2, arguments.points // CELL))
    rows: list[dict[str, Any]] = []
    for what, text in sweeps.items():
        for delay in map(float, arguments.delays.split(",")):
            for workers in map(int, arguments.workers.split(",")):
                rows.append({"what": what, **measured(text, workers, delay)})
                print(table(rows), flush=True)
                arguments.out.mkdir(parents=True, exist_ok=True)
                content = {"cores": os.cpu_count(), "rows": rows}
                (arguments.out / "scaleout.json").write_text(json.dumps(content, indent=1) + "\n")
                (arguments.out / "scaleout.md").write_text(f"{table(rows)}\n\ncores {os.cpu_count()}\n")


if __name__ == "__main__":
    main()
