"""Random valid problems and spectra: python benchmarks/robustness.py [--problems 2000] [--spectra 400] [--seed 0].

Problems have n from 10 to 1e9, ratios from .01 to 100, ridges from 1e-8 to 1e6 and steps of exponent -1 to .6. Of each
the prediction is looked at for refusals, numbers that are none, test errors below the noise, and limits: a step of
1e-9 is no step, and an endless ridge leaves the variance of the labels. Of a spectrum the mass as a line through its
points has it, the time and the memory. Times are those of one processor, which others on the machine do not lengthen;
jumps of less than 1e-11 of the labels' variance are rounding. Each runs in a process of its own. What was found is kept
in a file in the system's temporary folder, so that a run goes on where the last one stopped; `--fresh` starts anew, and
`--again KIND NUMBER` shows one of them. Exits with 1 if more was refused, or worse, than the limits below allow.
"""

import argparse
import collections
import json
import math
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 - not before the lines above

from firststep import Problem, Sizes, predict, predict_spectrum  # noqa: E402
from firststep.setting import OutsideTheoryWarning  # noqa: E402
from firststep.theory import unified  # noqa: E402, F401 - loaded once, before the processes

ACTIVATIONS = (
    *("relu", "tanh", "erf", "gelu", "softplus", "sigmoid", "abs", "sin(x)", "identity"),
    *("x + 0.3*h3", "h1 + h2 + 0.2*h3", "tanh(3*x)", "relu(x - 1)"),
)
TEACHERS = (
    *(
        "h1",
        "h2",
        "h3",
        "h1 + h2/sqrt(2)",
        "h1 + h3/6",
        "tanh(2*x)",
        "sign(x)",
        "relu",
        "sin(2*x)",
        "exp(x/2)",
    ),
    *("t1 + t1*t2", "t1*t2", "tanh(t1) + t2**2"),
)
INPUTS = ("power(0.5)", "power(1)", "levels(0.3, 1.7)", "spiked(10, overlap=0.5)")
# Refusals allowed among 2,000 problems and among 400 spectra, and what a spectrum may take.
REFUSALS = {"problems": 2 / 2000, "spectra": 2 / 400}
MASS, SECONDS, BYTES = 0.003, 10.0, 2 * 2**30
# An answer that takes longer, or more memory, is given up.
PATIENCE, MOST_BYTES = 60, 3 * 2**30
# Relative deviation from a limit that counts as wrong, and the share of the labels' variance that is rounding.
OFF, ROUNDED = 1e-3, 1e-11


def drawn(kind: str, number: int, seed: int) -> dict[str, Any]:
    """One valid problem, the same for every count of them."""
    rng = np.random.default_rng([seed, number, kind == "spectra"])
    n = round(10 ** rng.uniform(1, 9))

    def among(choices: tuple[Any, ...]) -> Any:
        return choices[int(rng.integers(len(choices)))]

    def beside(count: int) -> int:
        return max(1, round(count * 10 ** rng.uniform(-2, 2)))

    found: dict[str, Any] = {
        "activation": among(ACTIVATIONS),
        "teacher": among(TEACHERS),
        "noise_std": among((0.0, 0.0, 0.1, 0.5, 1.0, 30.0)),
        "rows": among(("gaussian", "sphere")),
        "readout": among(("gaussian", "rademacher", "constant")),
        "initial_output": among(("vanishing", "vanishing", "order_one")),
        "inputs": among(INPUTS) if rng.random() < 0.15 else "isotropic",
        "n_samples": n,
        "dim": beside(n),
        "width": beside(n),
        "n_step_samples": beside(n) if rng.random() < 0.3 else n,
        "step_exponent": float(rng.uniform(-1, 0.6)),
        "ridge": float(10 ** rng.uniform(-8, 6)),
        "of": among(("features", "weights")),
    }
    if found["dim"] < 4 or kind == "spectra":
        # Fewer directions than a teacher of two or a spike and its bulk need are no valid problem, and the theory of
        # spectra knows neither.
        found["inputs"] = "isotropic"
        found["teacher"] = "h1" if "t1" in found["teacher"] else found["teacher"]
    return found


def parts(setting: dict[str, Any]) -> tuple[Problem, Sizes]:
    names = ("n_samples", "dim", "width", "n_step_samples")
    other = (*names, "step_exponent", "ridge", "of")
    sizes = Sizes(*(setting[name] for name in names))
    return Problem(**{name: value for name, value in setting.items() if name not in other}), sizes


def problems(setting: dict[str, Any]) -> dict[str, Any]:
    """Predict at no step, nearly none and the step itself, at the ridge and at a huge one."""
    problem, sizes = parts(setting)
    step, ridge = float(sizes.step_size(setting["step_exponent"])), setting["ridge"]
    # Features grow like the cube of the spike, which grows with the step and the labels; rare neurons and samples have
    # some 1e9 times the mean of their squares.
    reach = (1 + step * math.sqrt(problem.label_variance)) ** 6
    huge = 1e12 * (ridge + sizes.width * reach * (1 + problem.activation.second_moment))
    found = predict(problem, sizes, step_sizes=[0.0, 1e-9, step], ridges=[ridge, huge])
    test, train = found.test_error, found.train_error
    wrong = []
    if not all(np.isfinite(values).all() for values in found.values.values()):
        names = [name for name, values in found.values.items() if not np.isfinite(values).all()]
        wrong.append(f"NaN in {', '.join(names)}")
    if (test < problem.noise_variance * (1 - 1e-6)).any():
        wrong.append(f"below the noise by {1 - float(test.min()) / problem.noise_variance:.1e}")
    if (train < 0).any() or (train > problem.label_variance * (1 + 1e-6)).any():
        wrong.append(f"train error {float(train.max() / problem.label_variance):.4g} of the labels' variance")
    for name, values in (("train", train), ("test", test)):
        # Errors far below the labels' variance, as of a linear teacher without noise, are rounding.
        size = np.maximum(values[0], ROUNDED * problem.label_variance)
        jump = float((np.abs(values[1] - values[0]) / size).max())
        if not jump <= OFF:
            wrong.append(f"{name} error jumps at no step by {jump:.1e}")
        off = float(np.abs(values[:, 1] / problem.label_variance - 1).max())
        if not off <= OFF:
            wrong.append(f"{name} error off at an endless ridge by {off:.1e}")
    return {"wrong": wrong, "test_error": float(test[2, 0]), "train_error": float(train[2, 0])}


def spectra(setting: dict[str, Any]) -> dict[str, Any]:
    """Predict a spectrum and integrate a line through its points."""
    problem, sizes = parts(setting)
    found = predict_spectrum(problem, sizes, step_exponent=setting["step_exponent"], of=setting["of"])
    wrong = []
    if not (np.isfinite(found.density).all() and np.isfinite(found.x).all()):
        wrong.append("NaN in the density")
    if (np.diff(found.x) < 0).any() or (found.density < 0).any():
        wrong.append("points out of order, or a negative density")
    mass = found.atom + float(np.trapezoid(found.density, found.x))
    # Eigenvalues of the matrix that lie outside the bulk are not part of it.
    few = len(found.outliers) / (sizes.width if setting["of"] == "features" else min(sizes.width, sizes.dim))
    if abs(mass - 1) > MASS + few:
        wrong.append(f"mass {mass:.4f}")
    return {"wrong": wrong, "mass": mass}


def answered(
    kind: Callable[[dict[str, Any]], dict[str, Any]], setting: dict[str, Any], end: Connection
) -> None:
    """In the process of one problem: its answer, the refusal or the crash, with time and memory."""
    # Of the processor, so that others on the machine do not count.
    started = time.process_time()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(started) + PATIENCE, math.ceil(started) + PATIENCE))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", OutsideTheoryWarning)
            found = kind(setting)
    except (ValueError, ArithmeticError, RuntimeError) as error:
        found = {"refused": f"{type(error).__name__}: {error}"}
    except BaseException as error:
        found = {"crashed": f"{type(error).__name__}: {error}"}
    found["seconds"] = round(time.process_time() - started, 3)
    found["bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end.send(found)


def asked(kind: Callable[[dict[str, Any]], dict[str, Any]], setting: dict[str, Any]) -> dict[str, Any]:
    """One answer from a process of its own, which is ended when it takes too long."""
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=answered, args=(kind, setting, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(20 * PATIENCE) else {"crashed": "no answer", "seconds": PATIENCE}
    except EOFError:
        return {"crashed": f"ended without an answer, perhaps after {PATIENCE} s", "seconds": PATIENCE}
    finally:
        process.kill()
        process.join()
        here.close()


def results(
    kind: Callable[[dict[str, Any]], dict[str, Any]], count: int, seed: int, file: Path
) -> Iterator[dict[str, Any]]:
    """What was kept, then what is missing."""
    kept = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {one["number"]: one for one in kept}
    with file.open("a") as target:
        for number in range(count):
            if number not in known:
                setting = drawn(kind.__name__, number, seed)
                known[number] = {"number": number, "setting": setting, **asked(kind, setting)}
                target.write(json.dumps(known[number]) + "\n")
                target.flush()
            yield known[number]


def judged(kind: str, found: list[dict[str, Any]]) -> bool:
    """Print what was found, and say whether it is within the limits."""
    classes: dict[str, list[int]] = collections.defaultdict(list)
    for one in found:
        names = [f"{word}: {one[word]}" for word in ("refused", "crashed") if word in one] + one.get(
            "wrong", []
        )
        if kind == "spectra" and one.get("seconds", 0) > SECONDS:
            names.append("slow")
        if kind == "spectra" and one.get("bytes", 0) > BYTES:
            names.append("above 2 GiB")
        for name in names:
            classes[name].append(one["number"])
    seconds = sorted(one.get("seconds", math.inf) for one in found)
    most = max(one.get("bytes", 0) for one in found) / 2**20
    refused = sum("refused" in one for one in found)
    worse = sum(bool(one.get("wrong")) or "crashed" in one for one in found)
    print(
        f"{len(found)} {kind}: {refused} refused, {worse} wrong; median {seconds[len(seconds) // 2]:.2f} s, "
        f"longest {seconds[-1]:.1f} s, most memory {most:.0f} MiB"
    )
    for name, numbers in sorted(classes.items(), key=lambda item: -len(item[1])):
        print(f"  {len(numbers)} × {name[:300]} ({', '.join(map(str, numbers[:8]))})")
    slow = kind == "spectra" and (seconds[-1] > SECONDS or most * 2**20 > BYTES)
    return refused <= math.ceil(REFUSALS[kind] * len(found)) and not worse and not slow


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--spectra", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--again", nargs=2, metavar=("KIND", "NUMBER"))
    arguments = parser.parse_args()
    kinds = {"problems": problems, "spectra": spectra}
    if arguments.again:
        kind, number = arguments.again
        setting = drawn(kind, int(number), arguments.seed)
        print(json.dumps(setting, indent=1))
        print(json.dumps(asked(kinds[kind], setting), indent=1))
        return
    right = True
    for name, kind_of in kinds.items():
        file = Path(tempfile.gettempdir()) / f"firststep-robustness-{name}-{arguments.seed}.jsonl"
        if arguments.fresh:
            file.unlink(missing_ok=True)
        found = list(results(kind_of, getattr(arguments, name), arguments.seed, file))
        right = (not found or judged(name, found)) and right
    sys.exit(not right)


if __name__ == "__main__":
    main()
