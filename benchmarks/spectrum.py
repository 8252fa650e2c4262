"""Seconds for one predicted spectrum, and how its density moves under refinement.

    ./run python benchmarks/spectrum.py             # a table of problems at n = 2000
    ./run python benchmarks/spectrum.py --hard      # all readouts, ratios up to 3, up to eta = sqrt(N)
    ./run python benchmarks/spectrum.py --random 400    # ratios .05 to 20 (weights .001 to 1000): refusals, masses
    ./run python benchmarks/spectrum.py --edges 20      # upper ends against drawn networks, labels with tails

A slider wants half a second of an idle core. The density is compared with one at twice the resolution, which is
approached from the complex plane anew; differences are in units of the density's maximum.
"""

import argparse
import os
import random
import resource
import time
from dataclasses import replace

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 - not before the lines above

from firststep import Problem, Sizes, Spectrum, predict_spectrum, simulate_spectrum  # noqa: E402
from firststep.theory.spectra.feature_bulk import FeatureBulk  # noqa: E402

TEACHER, NOISE = "h1 + h2/sqrt(2)", 0.5
# A point in so many is solved again.
EVERY = 13
SIZES = ((2000, 1000, 1500), (1000, 1000, 3000), (3000, 1000, 1000), (1000, 333, 1000), (600, 1800, 900))


def moved(found: Spectrum) -> float:
    """Largest change of the density when solved at twice the resolution, in units of its maximum."""
    used = found.details["resolution"]
    finer = replace(
        used,
        nodes=2 * used.nodes,
        readout_spacing=max(used.readout_spacing / 2, 0.12),
        rest_levels=min(2 * used.rest_levels, used.rest_levels + 16),
        negligible=used.negligible / 10,
    )
    bulk = FeatureBulk(found.problem, found.sizes, found.step_size, "structured", resolution=finer)
    some = slice(5, None, EVERY)
    again = bulk.approached(found.x[some]).density
    return float(np.abs(again - found.density[some]).max() / found.density.max())


def show(problem: Problem, sizes: Sizes, alpha: float, of: str) -> None:
    """One line of the table."""
    started = time.process_time()
    found = predict_spectrum(problem, sizes, sizes.step_size(alpha), of=of)
    seconds = time.process_time() - started
    change = moved(found) if of == "features" else np.nan
    outliers = ", ".join(f"{outlier.eigenvalue:.4g}" for outlier in found.outliers)
    shape = f"{sizes.n_samples}, {sizes.dim}, {sizes.width}"
    name = f"{problem.activation.spec}, {problem.readout}, {problem.initial_output}, {of}"
    details = found.details
    print(
        f"{name:42s} {shape:16s} {alpha:5.2f} {seconds:6.2f} {details['mass'] - 1:9.1e} "
        f"{details['accuracy']:8.0e} {change:8.0e}  {outliers}",
        flush=True,
    )


ACTIVATIONS = (
    "relu",
    "tanh",
    "softplus",
    "gelu",
    "erf",
    "x*sigmoid(3*x)",
    "sin(x) + cos(x)/2",
    "h1 + 0.3*h2",
)
TEACHERS = ("h1", TEACHER, "relu", "sin(2*x)", "tanh(3*x)", "h1 + h3/sqrt(6)", "h2")
# What a random spectrum must keep: mass to this, seconds, bytes.
RIGHT_MASS, LONGEST, MOST_MEMORY = 0.003, 10.0, 2 << 30


def drawn(seed: int, index: int) -> tuple[Problem, Sizes, float, str]:
    """A random problem, of which three in ten ask for the weights."""
    draw = random.Random(f"{seed} {index}")
    of = draw.choice(["features"] * 7 + ["weights"] * 3)
    problem = Problem(
        draw.choice(ACTIVATIONS),
        draw.choice(TEACHERS),
        noise_std=draw.choice([0.0, 0.3, 1.0]),
        rows=draw.choice(["sphere", "gaussian"]),
        readout=draw.choice(["gaussian", "rademacher", "constant"]),
        initial_output=draw.choice(["vanishing", "order_one"]),
    )
    n = round(10 ** draw.uniform(2, 4))
    reach = 1.5 if of == "weights" else 1.25
    dim, width, step = (max(2, round(n * 10 ** draw.uniform(-reach, reach))) for _ in range(3))
    sizes = Sizes(n, dim, width, max(step, dim // 10))
    return problem, sizes, float(sizes.step_size(draw.uniform(-0.2, 0.55))), of


def show_random(count: int, seed: int) -> None:
    """Refusals, masses and times over random spectra; those that fall short are printed."""
    refused, wrong, slow, seconds = 0, 0, 0, []
    for index in range(count):
        problem, sizes, step, of = drawn(seed, index)
        what, started = "", time.process_time()
        try:
            found = predict_spectrum(problem, sizes, step, of=of)
            # What a line through the points integrates to.
            mass = float(np.trapezoid(found.density, found.x)) + found.atom
            if abs(found.details["mass"] - 1) > RIGHT_MASS or abs(mass - 1) > 10 * RIGHT_MASS:
                wrong += 1
                what = f"mass {found.details['mass']:.4f}, of the line {mass:.4f}"
        except (RuntimeError, ValueError) as error:
            refused += 1
            what = str(error)[:100]
        seconds.append(time.process_time() - started)
        if seconds[-1] > LONGEST:
            slow += 1
            what += f" {seconds[-1]:.0f} s"
        if what:
            name = ", ".join(str(x) for x in problem.to_dict().values())
            print(f"{index:4d} {of} {name} {tuple(sizes.to_dict().values())} {step:.3g}: {what}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{count} spectra: {refused} refused, {wrong} with a wrong mass, {slow} beyond {LONGEST:.0f} s; median "
        f"{np.median(seconds):.2f} s, slowest {max(seconds):.1f} s, peak memory {peak / 2**30:.2f} of "
        f"{MOST_MEMORY / 2**30:.0f} GiB"
    )


def drawn_edge(rng: np.random.Generator) -> tuple[Problem, Sizes, float, str]:
    """A random problem whose labels have tails, at a step large enough that these show."""
    of = "weights" if rng.uniform() < 0.25 else "features"
    problem = Problem(
        str(rng.choice(["gelu", "relu", "softplus", "x*sigmoid(3*x)", "sin(x) + cos(x)/2"])),
        str(rng.choice(["h3", "h1 + h3/6", "h2", "h1 + h3/2", "exp(x/2)", "h1 + h2/sqrt(2)", "x**3"])),
        noise_std=float(rng.choice([0.0, 0.5])),
        rows=str(rng.choice(["sphere", "gaussian"])),
        readout=str(rng.choice(["gaussian", "rademacher"])),
        initial_output=str(rng.choice(["vanishing", "vanishing", "order_one"])),
    )
    n, dim, width, step = (round(600 * 2 ** rng.uniform(low, 1)) for low in (-0.5, -1.5, -1.0, -0.5))
    return problem, Sizes(n, dim, width, step), float(rng.uniform(0.35, 0.52)), of


def show_edges(count: int, seed: int) -> None:
    """Random problems whose labels have tails: where the bulk ends, and where drawn networks end."""
    rng = np.random.default_rng(seed)
    noted, inside, below, total, distances = 0, 0, 0, 0, []
    for index in range(count):
        problem, sizes, alpha, of = drawn_edge(rng)
        found = predict_spectrum(problem, sizes, step_exponent=alpha, of=of)
        drawn = simulate_spectrum(problem, sizes, step_exponent=alpha, of=of, replicas=8, seed=seed + index)
        tops = sorted(np.sort(one)[::-1][len(found.outliers)] for one in drawn.details["eigenvalues"])
        low, high = found.details["end_range"]
        noted += bool(found.details["notes"])
        # Without a note the end is one of the network itself, up to its fluctuation.
        inside += sum(low * 0.9 <= top <= high * 1.1 for top in tops)
        below += sum(top < found.edges[1] for top in tops)
        total += len(tops)
        distances.append(found.edges[1] / np.median(tops) - 1)
        shape = ",".join(str(size) for size in sizes.to_dict().values())
        name = (
            f"{problem.activation.spec}, {problem.teacher.spec}, {problem.readout}, {problem.initial_output}"
        )
        print(
            f"{of:8s} {name:52s} {shape:18s} alpha {alpha:.2f}  end {found.edges[1]:7.2f} ({low:.2f} to {high:.2f}), "
            f"drawn {tops[0]:.2f}, {np.median(tops):.2f}, {tops[-1]:.2f}: {100 * distances[-1]:+.0f} %",
            flush=True,
        )
    print(
        f"{noted} of {count} with a note; {inside} of {total} drawn ends within the range, to a tenth; {below} below "
        f"the end; from the median of a problem's draws the end is {100 * np.median(distances):+.0f} % in the middle, "
        f"{100 * np.min(distances):+.0f} to {100 * np.max(distances):+.0f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hard", action="store_true", help="problems whose bulk is hard to resolve")
    parser.add_argument("--random", type=int, default=0, metavar="K", help="so many random spectra")
    parser.add_argument(
        "--edges", type=int, default=0, metavar="K", help="so many upper ends beside drawn ones"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random spectra")
    arguments = parser.parse_args()
    if arguments.edges:
        show_edges(arguments.edges, arguments.seed)
        return
    if arguments.random:
        show_random(arguments.random, arguments.seed)
        return
    print(
        f"{'problem':42s} {'n, d, N':16s} {'alpha':>5s} {'cpu s':>6s} {'mass - 1':>9s} {'claimed':>8s} "
        f"{'moved':>8s}  outliers"
    )
    if arguments.hard:
        for alpha in (0.2, 0.35, 0.5):
            for activation in ("relu", "tanh", "softplus"):
                for readout in ("gaussian", "rademacher", "constant"):
                    problem = Problem(activation, TEACHER, NOISE, readout=readout)
                    for shape in SIZES:
                        show(problem, Sizes(*shape), alpha, "features")
        return
    sizes = Sizes(*SIZES[0])
    for activation in ("relu", "tanh", "softplus"):
        for output in ("vanishing", "order_one"):
            problem = Problem(activation, TEACHER, NOISE, initial_output=output)
            for of in ("features", "weights"):
                # The first call fills caches that a slider finds full.
                predict_spectrum(problem, sizes, 1.0, of=of)
                for alpha in (0.2, 0.4):
                    show(problem, sizes, alpha, of)


if __name__ == "__main__":
    main()
