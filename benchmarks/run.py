"""How fast the package is, as ratios measured in one run: python benchmarks/run.py [--quick] [--rows 1,2,5].

Contenders take turns, so that whatever else the machine does meets both alike. A row gives the median over the
turns and the range. Writes benchmarks/results/speed.json and speed.md; `--quick` (small sizes) writes
nothing unless `--out` says where.

Rows 1 to 3 compare with what a user writes today: NumPy for the gradient, features recomputed for each step
size, `sklearn.linear_model.Ridge` for each ridge. PyTorch's autograd takes part where torch is installed.
"""

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 - not before the lines above

from firststep import Problem, Sizes  # noqa: E402
from firststep.results.replicas import controlled  # noqa: E402
from firststep.simulate import Draw, run_replica, simulate  # noqa: E402
from firststep.simulate.replica import DOUBLED  # noqa: E402

RESULTS = Path(__file__).parent / "results"
TEACHER, NOISE = "h1 + h2/sqrt(2)", 0.5
CUBIC = "h1 + h2/sqrt(2) + h3/sqrt(6)"
RIDGES = np.logspace(-3, 1, 10)


def step_sizes(sizes: Sizes, count: int = 10) -> np.ndarray:
    """No step, and eta = n^alpha for alpha up to a half."""
    return np.append(0.0, sizes.step_size(np.linspace(0, 0.5, count - 1)))


def timed(function: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds, those of finished child processes included."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    function()
    return time.perf_counter() - wall, cpu_seconds() - cpu


def cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def alternating(contenders: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, function in contenders.items():
            found[name].append(timed(function))
    return found


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratio(
    slow: list[tuple[float, float]], fast: list[tuple[float, float]], clock: int = 1
) -> dict[str, float]:
    """Ratio of times turn by turn; by default of CPU times, which a busy machine disturbs less."""
    return spread([a[clock] / b[clock] for a, b in zip(slow, fast, strict=True)])


def numpy_gradient(x: np.ndarray, y: np.ndarray, w: np.ndarray, a: np.ndarray, name: str) -> np.ndarray:
    z = x @ w.T
    if name == "relu":
        value, slope = np.maximum(z, 0) - 1 / math.sqrt(2 * math.pi), (z > 0).astype(float)
    else:
        value = np.tanh(z)
        slope = 1 - value**2
    residual = y - value @ a / math.sqrt(len(a))
    return (np.outer(residual, a) * slope).T @ x / len(y)


def torch_gradient(x: np.ndarray, y: np.ndarray, w: np.ndarray, a: np.ndarray, name: str) -> np.ndarray:
    import torch

    weights = torch.tensor(w, requires_grad=True)
    inputs, labels, readout = (torch.tensor(v) for v in (x, y, a))
    z = inputs @ weights.T
    value = torch.relu(z) - 1 / math.sqrt(2 * math.pi) if name == "relu" else torch.tanh(z)
    # The residual's own output is scaled by 1/sqrt N; the step is that of the unscaled network.
    residual = (labels - value @ readout / math.sqrt(len(a))).detach()
    (-(residual * (value @ readout)).mean()).backward()
    return -weights.grad.numpy()


def by_hand(
    problem: Problem,
    sizes: Sizes,
    etas: np.ndarray,
    ridges: np.ndarray,
    gradient: Callable[..., np.ndarray],
    replica: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Train and test errors (S, R) as a user writes them today, on the draw of our replica."""
    from sklearn.linear_model import Ridge

    draw, name = Draw(problem, sizes, replica=replica), problem.activation.spec
    w, a, (x0, y0), (x, y) = draw.weights(), draw.readout(), draw.step_sample(), draw.fit_sample()
    x_test, y_test = next(draw.test_blocks(sizes.n_samples))
    g = gradient(x0, y0, w, a, name)
    train, test = np.empty((2, len(etas), len(ridges)))
    for i, eta in enumerate(etas):
        w1 = w + eta * g
        f, f_test = x @ w1.T, x_test @ w1.T
        if name == "relu":
            f, f_test = (np.maximum(v, 0) - 1 / math.sqrt(2 * math.pi) for v in (f, f_test))
        else:
            f, f_test = np.tanh(f), np.tanh(f_test)
        for j, ridge in enumerate(ridges):
            fit = Ridge(alpha=ridge * len(y), fit_intercept=False).fit(f, y).coef_
            train[i, j] = np.mean((y - f @ fit) ** 2) + ridge * fit @ fit
            test[i, j] = np.mean((y_test - f_test @ fit) ** 2)
    return train, test


def replica(quick: bool, turns: int) -> list[dict[str, Any]]:
    """Rows 1 and 2."""
    sizes = Sizes(400, 200, 300) if quick else Sizes(2000, 1000, 1500)
    etas, rows = step_sizes(sizes), []
    factors = {dtype: np.random.default_rng(0).random((sizes.width,) * 2).astype(dtype) for dtype in KRYLOV}
    for name in ("relu", "tanh"):
        problem = Problem(name, TEACHER, noise_std=NOISE)
        expected: list[tuple[np.ndarray, np.ndarray]] = []
        contenders = {
            "numpy + sklearn": lambda p=problem, e=expected: e.append(
                by_hand(p, sizes, etas, RIDGES, numpy_gradient)
            ),
            "float64": lambda p=problem: run_replica(p, sizes, etas, RIDGES),
            "float32": lambda p=problem: run_replica(p, sizes, etas, RIDGES, dtype="float32"),
            "gemm float64": lambda: gemm(factors["float64"]),
            "gemm float32": lambda: gemm(factors["float32"]),
        }
        try:
            import torch

            torch.set_num_threads(1)
            contenders["torch + sklearn"] = lambda p=problem: by_hand(p, sizes, etas, RIDGES, torch_gradient)
        except ImportError:
            pass
        times = alternating(contenders, turns)
        # The same test sample for both, apart from the timing: there ours is exact and needs none.
        for dtype in ("float64", "float32"):
            options = {"dtype": dtype, "test": "sample", "n_test": sizes.n_samples}
            ours = run_replica(problem, sizes, etas, RIDGES, **options)
            error = max(
                float(np.max(np.abs(ours[key] / value - 1)))
                for key, value in zip(("train_error", "test_error"), expected[0], strict=True)
            )
            for slow in ("numpy + sklearn", "torch + sklearn"):
                if slow in times:
                    goal = {"float64": 9.5, "float32": 17}[dtype]
                    what = f"one replica, {name}, {dtype}, against {slow} (float64)"
                    seconds = spread([t[1] for t in times[dtype]])["median"]
                    unit = f"times faster; ours {seconds:.2f} s; errors differ by at most {error:.1e}"
                    rows.append(
                        {
                            "row": 1,
                            "what": what,
                            **ratio(times[slow], times[dtype]),
                            "unit": unit,
                            "goal": goal,
                        }
                    )
            work = operations(sizes, len(etas), len(RIDGES), dtype)
            shares = [
                100 * work / ours_time[1] / (GEMMS * 2 * sizes.width**3 / gemm_time[1])
                for ours_time, gemm_time in zip(times[dtype], times[f"gemm {dtype}"], strict=True)
            ]
            what = f"operations of that replica per second, {name}, {dtype}, over the machine's GEMM"
            rows.append({"row": 2, "what": what, **spread(shares), "unit": "%", "goal": 70})
    return rows


GEMMS = 8
# Products and solutions with the Gram matrix for a step size's Krylov spaces, counted at these ridges.
KRYLOV = {"float64": 45, "float32": 30}


def gemm(factor: np.ndarray) -> None:
    for _ in range(GEMMS):
        factor @ factor


def operations(sizes: Sizes, n_steps: int, n_ridges: int, dtype: str) -> float:
    """Floating-point operations that a replica's matrix products and factorisations need.

    A symmetric product counts half of any other; draws, activations and the elementwise series of the test error
    count nothing, although they take time. What a fit in float64 computes in float32 counts as if it were in
    float64, its refinement nothing.
    """
    n, d, width, n0 = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
    small, large = min(n, width), max(n, width)
    # Two products with each sample, and the three symmetric ones of the weights after any step.
    shared = 4.0 * (n0 + n) * d * width + 3.0 * width**2 * d
    gram, factorisation, krylov = large * small**2, small**3 / 3, KRYLOV[dtype] * 2.0 * small**2
    errors = (2.0 * n * width + width**2) * n_ridges
    return shared + n_steps * (gram + factorisation + krylov + errors)


def standard_error(quick: bool, turns: int) -> list[dict[str, Any]]:
    """Row 3: variance of the test error's gain times CPU seconds of a replica, ours against plain Monte Carlo.

    With `extras="double"` a replica in float32 takes a sixteenth of one in float64 besides, and the variance of its
    mean has the corrections' own. All contenders see the same draws, so that the ratio of variances is known better
    than either.
    """
    sizes, replicas = (Sizes(200, 100, 150), 24) if quick else (Sizes(800, 400, 600), 500)
    problem = Problem("relu", TEACHER, noise_std=NOISE)
    eta, ridge = float(sizes.step_size(0.4)), np.array([0.1])
    both = np.array([0.0, eta])

    def by_pairs(number: int) -> float:
        # One draw for both step sizes, and a test sample.
        found = by_hand(problem, sizes, both, ridge, numpy_gradient, number)[1]
        return float(found[0, 0] - found[1, 0])

    def by_own_draws(number: int) -> float:
        without = by_hand(problem, sizes, both[:1], ridge, numpy_gradient, 10**6 + number)[1]
        stepped = by_hand(problem, sizes, both[1:], ridge, numpy_gradient, number)[1]
        return float(without[0, 0] - stepped[0, 0])

    kinds = ("float64", "float32")
    found: dict[str, list[Any]] = {name: [] for name in ("own draws", "one draw", *kinds)}
    clocks = dict.fromkeys(found, 0.0)
    for kind in kinds:
        run_replica(problem, sizes, [eta], ridge, dtype=kind)  # warms everything up
    # From a thousand on, because the control variates were judged on earlier draws.
    for number in range(1000, 1000 + replicas):
        for name, values in found.items():
            start = time.process_time()
            if name in kinds:
                values.append(
                    run_replica(problem, sizes, [eta], ridge, replica=number, dtype=name, extras="controls")
                )
            else:
                values.append(by_own_draws(number) if name == "own draws" else by_pairs(number))
            clocks[name] += time.process_time() - start
    return error_rows(found, clocks, kinds)


def error_rows(
    found: dict[str, list[Any]], clocks: dict[str, float], kinds: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Ratios of variance times CPU seconds, with what a bootstrap over the replicas says of them."""
    replicas, label = len(found[kinds[0]]), {"double": "float32 corrected by float64"}
    rows, rng = [], np.random.default_rng(0)
    gains = {kind: np.array([values["test_gain"][0, 0] for values in found[kind]]) for kind in kinds}
    # What the corrections add to the variance of one replica.
    added = dict.fromkeys(kinds, 0.0) | {
        "double": DOUBLED * float(np.var(gains["float64"] - gains["float32"]))
    }
    clocks["double"] = clocks["float32"] + clocks["float64"] / DOUBLED
    gains["double"], found["double"] = gains["float32"], found["float32"]
    for name in ("own draws", "one draw"):
        for kind, plain in gains.items():
            corrected = controlled(plain, np.array([values.controls for values in found[kind]]))
            for control, mine in (("", plain), (" and control variates", corrected)):
                values, cost = np.array(found[name]), clocks[name] / clocks[kind]
                samples = rng.integers(replicas, size=(400, replicas))
                variances = np.var(mine[samples], axis=1) + added[kind]
                ratios = np.sort(np.var(values[samples], axis=1) / variances) * cost
                what = f"CPU seconds for one standard error of the gain: by hand ({name} for both steps, float64)"
                rows.append(
                    {
                        "row": 3,
                        "what": f"{what} over ours, {label.get(kind, kind)}{control}",
                        "median": float(np.var(values) / (np.var(mine) + added[kind]) * cost),
                        "low": float(ratios[20]),
                        "high": float(ratios[380]),
                        "unit": "times as many (90 % by bootstrap)",
                        "goal": 8,
                    }
                )
    return rows


def small(quick: bool, turns: int) -> list[dict[str, Any]]:
    """Row 9: small replicas, where what is the same for every size counts."""
    rows = []
    cases = [(Sizes(1500, 40, 1000), 1), (Sizes(600, 40, 400), 3), (Sizes(200, 40, 150), 10)]
    for sizes, repeats in cases[-1:] if quick else cases:
        etas = step_sizes(sizes)
        for name in ("relu", "tanh"):
            problem = Problem(name, TEACHER, noise_std=NOISE)
            run_replica(problem, sizes, etas, RIDGES)
            times = alternating(
                {
                    "by hand": lambda p=problem, s=sizes, e=etas: by_hand(p, s, e, RIDGES, numpy_gradient),
                    "ours": lambda p=problem, s=sizes, e=etas: run_replica(p, s, e, RIDGES),
                },
                turns * repeats,
            )
            shape = f"n, d, N = {sizes.n_samples}, {sizes.dim}, {sizes.width}, 10 x 10"
            what = f"one replica, {name}, {shape}, against numpy + sklearn"
            seconds = statistics.median(t[1] for t in times["ours"])
            unit = f"times faster; ours {1000 * seconds:.1f} ms"
            rows.append(
                {"row": 9, "what": what, **ratio(times["by hand"], times["ours"]), "unit": unit, "goal": 5}
            )
    sizes, replicas = Sizes(200, 40, 150), 40 if quick else 400
    problem, etas, ridges = Problem("relu", TEACHER, noise_std=NOISE), step_sizes(sizes, 5), RIDGES[[1, 4, 7]]

    def many() -> None:
        simulate(problem, sizes, etas, ridges, replicas=replicas, workers=2, progress=False)

    many()
    times = alternating({"many": many}, turns)["many"]
    what = "replicas a second on two workers, n, d, N = 200, 40, 150, 5 step sizes x 3 ridges"
    rates = spread([replicas / wall for wall, _ in times])
    rows.append({"row": 9, "what": what, **rates, "unit": "replicas/s, wall", "goal": 200})
    return rows


def workers(quick: bool, turns: int) -> list[dict[str, Any]]:
    """Row 4."""
    sizes, replicas = Sizes(400, 200, 300) if quick else Sizes(1200, 600, 900), 40
    problem = Problem("relu", TEACHER, noise_std=NOISE)
    etas = step_sizes(sizes)
    times = alternating(
        {
            f"{count}": lambda count=count: simulate(
                problem, sizes, etas, RIDGES, replicas=replicas, workers=count, progress=False
            )
            for count in (1, 2)
        },
        turns,
    )
    what = f"two workers against one, {replicas} replicas at n = {sizes.n_samples}"
    wall = [statistics.median(t[0] for t in times[name]) for name in "12"]
    return [
        {
            "row": 4,
            "what": what,
            **ratio(times["1"], times["2"], clock=0),
            "unit": f"times faster ({wall[0]:.0f} and {wall[1]:.0f} s)",
            "goal": 1.85,
        }
    ]


def growth(quick: bool, turns: int) -> list[dict[str, Any]]:
    """Row 5: each size in a process of its own, which knows its peak memory."""
    sizes = (250, 500, 1000) if quick else (500, 1000, 2000, 4000, 8000)
    measured = [one_size(n, n // 2, 3 * n // 4, "float64") for n in sizes]
    logs = np.log([[n, seconds, peak] for n, (seconds, peak) in zip(sizes, measured, strict=True)]).T
    rows = []
    for name, values in (("CPU time", logs[1]), ("peak memory", logs[2])):
        local = np.diff(values) / np.diff(logs[0])
        found = {
            "median": float(np.polyfit(logs[0], values, 1)[0]),
            "low": float(local.min()),
            "high": float(local.max()),
        }
        what = f"growth of {name} from n = {sizes[0]} to {sizes[-1]} (d = n/2, N = 3n/4)"
        detail = ", ".join(f"{m[0]:.2g} s" if name == "CPU time" else f"{m[1]:.2g} GiB" for m in measured)
        rows.append({"row": 5, "what": what, **found, "unit": f"power of n ({detail})", "goal": None})
    n = 1500 if quick else 10_000
    seconds, peak = one_size(n, n, n, "float32")
    what, found = (
        f"peak memory of a replica at n = d = N = {n}, float32",
        {"median": peak, "low": peak, "high": peak},
    )
    rows.append({"row": 5, "what": what, **found, "unit": f"GiB ({seconds:.0f} CPU seconds)", "goal": -8})
    return rows


def one_size(n: int, d: int, width: int, dtype: str) -> tuple[float, float]:
    command = [sys.executable, __file__, "--one-size", f"{n},{d},{width},{dtype}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak = map(float, done.stdout.split())
    return seconds, peak


def print_one_size(text: str) -> None:
    n, d, width, dtype = text.split(",")
    sizes = Sizes(int(n), int(d), int(width))
    problem = Problem("relu", TEACHER, noise_std=NOISE)
    seconds = timed(lambda: run_replica(problem, sizes, [sizes.step_size(0.4)], RIDGES, dtype=dtype))[1]
    print(seconds, peak_memory())


def peak_memory() -> float:
    """GiB that this process held at most; what getrusage says would include the process that started it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def theories(quick: bool, turns: int) -> list[dict[str, Any]]:
    """Row 6."""
    from firststep.theory import predict
    from firststep.theory.limits.random_features import limiting_traces
    from firststep.theory.size_maps import predict_map
    from firststep.theory.spectra.spectrum import critical_steps, predict_spectrum

    count, side = (10**4, 50) if quick else (10**5, 200)
    rng = np.random.default_rng(0)
    ridge, phi, psi = 10 ** rng.uniform([[-6], [-1], [-1]], [[2], [1], [1]], (3, count))
    problem, sizes = Problem("relu", TEACHER, noise_std=NOISE), Sizes(2000, 1000, 1500)
    curve, few = step_sizes(sizes, 60), Sizes(1500, 40, 1000)
    cubic = {rows: Problem("relu", CUBIC, noise_std=0.3, rows=rows) for rows in ("sphere", "gaussian")}
    at = np.linspace(0, 0.5, side), np.logspace(-3, 1, side)
    plane = {
        "n_samples": np.geomspace(500, 4000, side).round(),
        "dims": np.geomspace(200, 1500, side).round(),
    }
    tasks: dict[str, tuple[Callable[[], Any], int, float]] = {
        "points of (m1, m2) per second": (lambda: limiting_traces(ridge, phi, psi, 0.5, 0.3), count, 0),
        "unified theory, points of a 60 x 10 grid per second": (
            lambda: predict(problem, sizes, curve, RIDGES), 60 * 10, 2500,
        ),
        "unified theory, a curve of 60 step sizes at one ridge": (
            lambda: predict(problem, sizes, curve, 0.1), 0, -0.06,
        ),
        **{
            f"the same where three degrees matter, n, d, N = 1500, 40, 1000, {rows} rows": (
                lambda p=setting: predict(p, few, step_sizes(few, 60), 0.1), 0, -0.6,
            )
            for rows, setting in cubic.items()
        },
        "spectrum: density at 200 points with outliers": (
            lambda: predict_spectrum(problem, sizes, float(sizes.step_size(0.4))), 0, -0.15,
        ),
        "critical_steps of the first two spikes": (lambda: critical_steps(problem, sizes), 0, -2),
        f"a map of {side} x {side} exponents and ridges in one call on two processes, wall": (
            lambda: predict(problem, sizes, step_exponents=at[0], ridges=at[1], workers=2, progress=False), 0, -20,
        ),
        f"a map of {side} x {side} samples and dimensions, N = 1500, ridge 0.1, on two processes, wall": (
            lambda: predict_map(
                problem, **plane, width=1500, step_exponent=0.4, workers=2, progress=False
            ), 0, -20,
        ),
    }  # fmt: skip
    for task, _, _ in tasks.values():
        task()
    times = alternating({name: task for name, (task, _, _) in tasks.items()}, turns)
    rows = []
    for name, (_, points, goal) in tasks.items():
        seconds = [t[0] if name.endswith("wall") else t[1] for t in times[name]]
        values, unit = ([points / t for t in seconds], "points/s") if points else (seconds, "s")
        rows.append({"row": 6, "what": name, **spread(values), "unit": unit, "goal": goal or None})
    return rows


def storage(quick: bool, turns: int) -> list[dict[str, Any]]:
    """Row 7."""
    from firststep.store import open_store

    writes, points = (200, 2000) if quick else (2000, 100_000)
    grid = {name: np.full((10, 10), 0.5) for name in ("train_error", "test_error")}
    etas = np.arange(10.0)
    found: dict[str, list[float]] = {"writes": [], "reads": [], "export": []}
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "points.db") as store:

            def write_one(i: int, store: Any = store) -> None:
                store.add(
                    {"source": "simulation", "replica": i}, "network", [1.0], [0.1], {"test_error": [[0.5]]}
                )

            wall, _ = timed(lambda: [write_one(i) for i in range(writes)])
            found["writes"].append(writes / wall)
            for i in range(points // 100):
                store.add({"source": "simulation", "replica": writes + i}, "network", etas, RIDGES, grid)
            wall, _ = timed(store.rows)
            found["reads"].append(store.count() / wall)
            wall, _ = timed(lambda: store.to_csv(Path(folder) / "points.csv"))
            found["export"].append(wall)
    texts = {
        "writes": ("store: acknowledged writes, one point each", "writes/s"),
        "reads": ("store: rows read", "rows/s"),
        "export": (f"store: export of a {points + writes}-row sweep as CSV", "s"),
    }
    return [
        {"row": 7, "what": what, **spread(found[name]), "unit": unit, "goal": None}
        for name, (what, unit) in texts.items()
    ]


def command_line(quick: bool, turns: int) -> list[dict[str, Any]]:
    """Row 8: as an installed package starts, whose modules are compiled."""
    first = "import firststep as f; f.predict(f.Problem('relu', 'h1 + h2/sqrt(2)'), f.Sizes(1000, 500, 750), [0, 5])"
    commands = {
        "firststep --help": (["-m", "firststep", "--help"], 0.1),
        "firststep predict": (["-m", "firststep", "predict", "-q"], 0.3),
        "import firststep and a first predict in Python": (["-c", first], 0.5),
    }
    with tempfile.TemporaryDirectory() as compiled:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def call(arguments: list[str]) -> None:
            subprocess.run([sys.executable, *arguments], capture_output=True, check=True, env=environment)

        for arguments, _ in commands.values():
            call(arguments)
        times = alternating(
            {name: lambda a=arguments: call(a) for name, (arguments, _) in commands.items()}, 3 * turns
        )
    rows = []
    for name, (_, goal) in commands.items():
        seconds = statistics.median(t[1] for t in times[name])
        found = spread([t[0] for t in times[name]])
        rows.append(
            {"row": 8, "what": f"{name}, wall", **found, "unit": f"s ({seconds:.2f} of CPU)", "goal": -goal}
        )
    return rows


ROWS: dict[str, Callable[[bool, int], list[dict[str, Any]]]] = {
    "1": replica,
    "3": standard_error,
    "4": workers,
    "5": growth,
    "6": theories,
    "7": storage,
    "8": command_line,
    "9": small,
}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| row | what | median | range | unit | goal | load |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        goal = row["goal"]
        wanted = "" if goal is None else f"≥ {goal:g}" if goal > 0 else f"≤ {-goal:g}"
        lines.append(
            f"| {row['row']} | {row['what']} | {row['median']:.3g} | {row['low']:.3g} … {row['high']:.3g} "
            f"| {row['unit']} | {wanted} | {row['load']:.1f} |"
        )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    import scipy
    import sklearn

    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii").splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    versions = {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__}
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "blas_threads": os.environ["OPENBLAS_NUM_THREADS"],
        **versions,
        "scikit-learn": sklearn.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, few turns")
    parser.add_argument("--rows", default=",".join(ROWS), help="rows to measure (row 2 comes with row 1)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each contender (3)")
    parser.add_argument("--out", type=Path, help="folder for speed.json and speed.md")
    parser.add_argument("--one-size", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one_size:
        print_one_size(arguments.one_size)
        return
    about, rows = machine(), []
    out = arguments.out or (None if arguments.quick else RESULTS)
    for name in wanted_rows(arguments.rows, parser):
        found = ROWS[name](arguments.quick, arguments.turns)
        load = os.getloadavg()[0]
        rows += [row | {"load": load} for row in found]
        print(table(rows), flush=True)
        if out is not None:
            save(out, about, rows)


def wanted_rows(text: str, parser: argparse.ArgumentParser) -> list[str]:
    """Names of the measurements for some rows, each once; complains of others before anything is measured."""
    names = [name.strip() for name in text.split(",")]
    # Both are measured together.
    names = ["1" if name == "2" else name for name in names]
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        parser.error(
            f"--rows: there is no row {unknown[0]!r}; there are {', '.join(ROWS)} (row 2 comes with row 1)"
        )
    return list(dict.fromkeys(names))


def save(out: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the rows, with those of an earlier run that were not measured this time."""
    out.mkdir(parents=True, exist_ok=True)
    file, measured = out / "speed.json", {row["row"] for row in rows}
    earlier = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    rows = sorted([row for row in earlier if row["row"] not in measured] + rows, key=lambda row: row["row"])
    file.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    head = ", ".join(f"{key} {value}" for key, value in about.items())
    (out / "speed.md").write_text(f"{table(rows)}\n\n{head}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
