"""Golden numbers: what the package answers on a fixed set of problems, written down and compared later.

    python benchmarks/golden.py make tests/data/golden.json
    python benchmarks/golden.py check tests/data/golden.json
    python benchmarks/golden.py renew tests/data/golden.json predictions
    python benchmarks/golden.py check FILE --tolerance 1e-10 --tolerance simulations=1e-6 --only unified
    python benchmarks/golden.py since tests/data/golden_before.json.gz tests/data/golden.json

A file holds every case with its numbers, and `check` computes the cases of the file, so that it stays valid
when the lists below change. Only public names are used. Simulations must agree to the bit, which they
can only where NumPy, SciPy and the BLAS round as they did when the file was made; `arithmetic` tells.

`tests/data/golden_before.json.gz` holds the answers of commit 3d7d2ce, before a setting was made of parts (`make`, with
that commit's src/ first in PYTHONPATH). `since` says which numbers are others now; REASONS why.
"""

import argparse
import gzip
import hashlib
import importlib.util
import json
import math
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402 - not before the lines above

from firststep import (  # noqa: E402
    Problem,
    Sizes,
    critical_steps,
    function,
    predict,
    predict_spectrum,
    simulate,
    simulate_spectrum,
)


def degree_options() -> dict[str, Any]:
    """Extra options of every prediction with a theory that knows degrees; older versions know the first alone."""
    return {"degrees": 1} if importlib.util.find_spec("firststep.theory.sectors") else {}


Case = dict[str, Any]

# Largest relative difference that is accepted. A difference below a tenth of it is none, however small the
# number.
TOLERANCES = {"predictions": 1e-12, "simulations": 0.0, "spectra": 1e-9, "fits": 1e-12}
FLOOR = 0.1
SEED = 20220518

# Groups of cases with other numbers than before a setting was made of parts, and the changelog's words on why.
REASONS = {
    "structured rest": "The law of M holds the labels that n0 samples contain",
    "unified": "The resolutions at which errors are solved are balanced anew",
    "simulations": "Simulations with fewer than 256 neurons or samples and six ridges or more",
    "predicted spectra": "A predicted density has the ends of each of its pieces among its points",
    "fits": "The estimators' defaults are tanh in place of softplus",
}

CALLABLES: dict[str, Callable[[], Any]] = {
    "arctan": lambda: function(np.arctan, derivative=lambda x: 1 / (1 + x * x), name="arctan"),
    "clipped": lambda: function(lambda x: np.clip(x, -1, 1), kinks=(-1, 1), name="clipped"),
}
ACTIVATIONS: list[Any] = [
    "relu", "tanh", "erf", "softplus", "gelu", "silu", "sigmoid", "leaky_relu", "elu", "selu", "sin",
    "identity", "relu2", "cubic", "abs", "h1 + h3/6", "tanh(2*x)", "relu(x) - 0.2*x", "max(x, 0.1*x - 0.5)",
    "x/sqrt(1 + x**2)", "sin(x) + 0.3*cos(2*x)", [0, 1, 0.5], [0, 0.8, 0.3, 0.2],
    {"spec": "relu", "centre": False}, {"callable": "arctan"}, {"callable": "clipped"},
]  # fmt: skip
TEACHERS: list[Any] = [
    "identity", "h1 + h2/sqrt(2)", "relu", "tanh", "sin", "erf", "tanh(2*x)", "h1 + h3/sqrt(6)", "sign",
    "softplus", "h1 + 0.5*h2 + 0.2*h4", "min(max(x, -1), 2)", "relu2", "h2", "cubic", "exp(x/2)",
    [0, 1, 0.4, 0.2], [0, 0.7], {"spec": "softplus", "centre": False}, {"callable": "arctan"},
]  # fmt: skip
NOISES = [0.0, 0.2, 0.5, 1.0]
ROWS = ["gaussian", "sphere"]
READOUTS = ["gaussian", "rademacher", "constant"]
OUTPUTS = ["vanishing", "order_one"]
SIZES = [
    [1000, 500, 750], [400, 200, 300, 800], [2000, 1000, 600, 1000], [300, 600, 400], [500, 250, 1000, 200],
    [3000, 500, 1500, 1500], [800, 800, 800], [120, 60, 90, 100], [100000, 50000, 75000, 200000],
    [10**9, 5 * 10**8, 10**9],
]  # fmt: skip
STEPS: list[Case] = [
    {"step_sizes": [0.0, 3.0]},
    {"step_sizes": [0.5, 6.0]},
    {"step_sizes": 2.0},
    {"step_sizes": [10.0, 1.0]},
    {"step_sizes": 0},
    {"step_exponents": [0.0, 0.3]},
    {"step_exponents": [0.2, 0.45]},
    {"step_exponents": [-0.5, 0.25]},
    {"step_exponents": 0.5},
    {"step_exponents": 0},
]
RIDGES: list[Any] = [0.1, [0.01, 1.0], [1.0, 0.1, 0.001], [0.05, 10.0], 1e-4]


def cycled(rng: random.Random, values: Sequence[Any], count: int) -> list[Any]:
    """`count` of the values, all of them equally often, in random order."""
    found: list[Any] = []
    while len(found) < count:
        found += rng.sample(list(values), len(values))
    return found[:count]


def tables(rng: random.Random, count: int, /, **lists: Sequence[Any]) -> Iterator[Case]:
    """`count` dictionaries that go through each list on its own; None leaves the name out."""
    columns = {name: cycled(rng, values, count) for name, values in lists.items()}
    for index in range(count):
        yield {name: column[index] for name, column in columns.items() if column[index] is not None}


def problems(
    rng: random.Random, count: int, activations: Sequence[Any], teachers: Sequence[Any]
) -> list[Case]:
    """Descriptions of problems with every option."""
    return list(
        tables(
            rng, count, activation=activations, teacher=teachers, noise_std=NOISES, rows=ROWS,
            readout=READOUTS, initial_output=OUTPUTS,
        )
    )  # fmt: skip


def prediction_cases() -> dict[str, Case]:
    """180 of the unified theory, 60 of the staircase and 60 of random features."""
    rng = random.Random(SEED)
    options: dict[str, tuple[int, dict[str, list[Any]]]] = {
        "unified": (
            180,
            {
                "rest": [None, "structured", "noise", "none"],
                "tolerance": [*[None] * 7, 1e-4, "inf"],
                "baselines": [None, None, True],
            },
        ),
        "staircase": (
            60,
            {
                "full_gradient": [None, True],
                "row_norms": [None, True, False],
                "n_spikes": [None, None, None, 0, 2, 5],
                "baselines": [None, None, True],
            },
        ),
        "random_features": (60, {"baselines": [None, True]}),
    }
    cases: dict[str, Case] = {}
    for theory, (count, extra) in options.items():
        settings = problems(rng, count, ACTIVATIONS, TEACHERS)
        sizes, steps, ridges = (cycled(rng, values, count) for values in (SIZES, STEPS, RIDGES))
        for index, own in enumerate(tables(rng, count, **extra)):
            arguments = {"theory": theory, **steps[index], "ridges": ridges[index], **own}
            if theory == "staircase" and "n_spikes" not in own and "step_sizes" in steps[index]:
                # Without a given number of spikes the exponent must not exceed 1/2.
                arguments["step_sizes"] = [0.0, 2.5]
            cases[f"{theory}-{index:03d}"] = {
                "problem": settings[index],
                "sizes": sizes[index],
                "arguments": arguments,
            }
    return cases


def simulation_cases() -> dict[str, Case]:
    """40 small simulations, with every extra."""
    rng = random.Random(SEED + 1)
    count = 38
    settings = problems(rng, count, ACTIVATIONS, TEACHERS)
    sizes = cycled(
        rng,
        [[200, 100, 150], [120, 80, 160, 200], [300, 120, 100, 150], [150, 200, 120], [240, 60, 240, 120]],
        count,
    )
    steps = cycled(rng, STEPS, count)
    ridges = cycled(rng, RIDGES, count)
    extras = cycled(
        rng,
        [
            [], ["weights"], ["degrees"], ["linear"], ["spiked"], ["gaussian"],
            ["weights", "degrees", "linear"], ["spiked", "gaussian", "linear", "weights", "degrees"],
        ],
        count,
    )  # fmt: skip
    whole = {"linear", "spiked", "gaussian"}
    cases: dict[str, Case] = {}
    for index, own in enumerate(
        tables(
            rng, count, replicas=[1, 2], seed=[0, 1, 7],
            test=[None, "sample", "auto", "population", "sample"], n_test=[None, 500, 1201],
            dtype=[*[None] * 11, "float32"], block_rows=[None, 64],
        )
    ):  # fmt: skip
        arguments = {**steps[index], "ridges": ridges[index], "extras": extras[index], **own}
        if whole & set(extras[index]):
            arguments.pop("block_rows", None)
        if arguments.get("test") == "population" and arguments.get("step_exponents") == 0.5:
            # Not every activation has an exact test error there.
            arguments["test"] = "auto"
        cases[f"replica-{index:02d}"] = {
            "problem": settings[index],
            "sizes": sizes[index],
            "arguments": arguments,
        }
    # A large step leaves no exact test error, so that the gain alone is sampled.
    cases["replica-fallback"] = {
        "problem": {"activation": "tanh", "teacher": "relu", "noise_std": 0.2},
        "sizes": [150, 100, 120],
        "arguments": {"step_sizes": [5.0, 100.0], "ridges": [0.1, 1.0], "replicas": 2, "n_test": 700},
    }
    # Controls want 20 replicas at least.
    cases["replica-controls"] = {
        "problem": {"activation": "tanh", "teacher": "h1 + h2/sqrt(2)", "noise_std": 0.5},
        "sizes": [60, 30, 45, 80],
        "arguments": {"step_sizes": [0.0, 3.0], "ridges": [0.1, 1.0], "extras": ["controls"], "replicas": 20},
    }
    return cases


def spectrum_cases() -> dict[str, Case]:
    """20 predicted spectra, 10 simulated ones and 2 lists of critical step sizes."""
    rng = random.Random(SEED + 2)
    cases: dict[str, Case] = {}
    activations = ["relu", "tanh", "softplus", [0, 1, 0.5], "erf", "leaky_relu", "tanh(2*x)", "h1 + h3/6"]
    teachers = ["identity", "h1 + h2/sqrt(2)", "relu", "tanh(2*x)", [0, 1, 0.4, 0.2]]
    settings = problems(rng, 30, activations, teachers)
    sizes = cycled(rng, SIZES[:8], 20)
    for index, own in enumerate(
        tables(
            rng, 20, of=["features", "features", "features", "weights"], step_size=[0.0, 1.0, 3.0, 8.0, 15.0],
            rest=[None, "structured", "noise", "none"], check=[None, None, None, False],
        )
    ):  # fmt: skip
        if own["of"] == "weights":
            own.pop("check", None)
        cases[f"predicted-{index:02d}"] = {
            "problem": settings[index],
            "sizes": sizes[index],
            "arguments": {**own, "points": 16},
        }
    small = cycled(rng, [[200, 100, 150], [120, 80, 160, 200], [300, 120, 100, 150]], 10)
    for index, own in enumerate(
        tables(
            rng, 10, of=[*["features"] * 4, *["weights"] * 2, "gradient", "spiked0", "spiked2", "spiked3"],
            step_size=[0.0, 4.0, 6.0, 8.0, [2.0, 12.0]], replicas=[1, 2], seed=[0, 3],
            bulk=[None, None, False], overlaps=[None, None, None, False], count=[None, None, 2],
            dtype=[*[None] * 4, "float32"],
        )
    ):  # fmt: skip
        cases[f"simulated-{index:02d}"] = {
            "problem": settings[20 + index],
            "sizes": small[index],
            "arguments": {**own, "bins": 12},
        }
    cases["critical-00"] = {
        "problem": {"activation": "tanh", "teacher": "identity", "noise_std": 0.5},
        "sizes": [1000, 500, 750],
        "arguments": {"count": 1},
    }
    cases["critical-01"] = {
        "problem": {"activation": "relu", "teacher": "h1 + h2/sqrt(2)", "rows": "sphere"},
        "sizes": [400, 200, 300, 800],
        "arguments": {"count": 2, "rest": "noise"},
    }
    return cases


def fit_cases() -> dict[str, Case]:
    """10 fits: targets are "one" or "two" columns, "classes2" or "classes3"."""
    options: list[Case] = [
        {"target": "one"},
        {"target": "one", "step_size": 3.0, "ridge": 0.1, "activation": "relu", "bias": 0.0},
        {"target": "one", "step_size": [0.0, 2.0, 8.0], "ridge": [0.01, 0.1, 1.0], "whiten": True},
        {"target": "one", "split": 0.4, "whiten": False, "activation": "tanh(2*x)"},
        {"target": "two", "n_steps": 2, "weighted": True},
        {"target": "two", "dtype": "float32", "step_size": 2.0},
        {"target": "one", "step_size": 0, "activation": [0, 1, 0.5], "weighted": True},
        {"target": "classes2"},
        {"target": "classes3", "ridge": 0.5, "activation": "erf"},
        {"target": "classes3", "split": 0.5, "step_size": [0.0, 5.0], "weighted": True},
    ]
    shapes = [[160, 8, 60], [90, 30, 80], [120, 5, 150], [200, 12, 70]]
    return {
        f"fit-{index:02d}": {"shape": shapes[index % len(shapes)], "seed": index, "arguments": own}
        for index, own in enumerate(options)
    }


CASES: dict[str, Callable[[], dict[str, Case]]] = {
    "predictions": prediction_cases,
    "simulations": simulation_cases,
    "spectra": spectrum_cases,
    "fits": fit_cases,
}


def _function(spec: Any) -> Any:
    """An activation or teacher from its description."""
    if not isinstance(spec, dict):
        return function(spec)
    if "callable" in spec:
        return CALLABLES[spec["callable"]]()
    return function(spec["spec"], centre=spec["centre"])


def _studied(case: Case) -> tuple[Problem, Sizes]:
    """The problem and the sizes of a case."""
    given = dict(case["problem"])
    given |= {name: _function(given[name]) for name in ("activation", "teacher")}
    return Problem(**given), Sizes(*case["sizes"])


def predicted(case: Case) -> Case:
    """Every value of a prediction."""
    arguments = dict(case["arguments"])
    if "tolerance" in arguments:
        arguments["tolerance"] = float(arguments["tolerance"])
    if arguments["theory"] in ("unified", "random_features"):
        arguments |= degree_options()
    return dict(predict(*_studied(case), **arguments).values)


def simulated(case: Case) -> Case:
    """Every value of a simulation, with standard errors."""
    found = simulate(*_studied(case), workers=1, progress=False, **{"replicas": 1, **case["arguments"]})
    return {
        **found.values,
        **{f"{name}_stderr": value for name, value in found.stderr.items()},
        "test_stderr": found.details["test_stderr"],
    }


def spectrum(case: Case) -> Case:
    """Bulk, edges and outliers of a spectrum, or critical step sizes."""
    arguments = dict(case["arguments"])
    setting = _studied(case)
    if "of" not in arguments:
        return {"critical_steps": critical_steps(*setting, **arguments)}
    if "points" in arguments:
        return _described(predict_spectrum(*setting, **arguments))
    found = simulate_spectrum(*setting, **arguments)
    spectra = found if isinstance(found, tuple) else (found,)
    return {
        f"step_{index}": {
            **_described(one),
            "counts": one.details["counts"],
            "largest": [values[:5] for values in one.details["eigenvalues"]],
        }
        for index, one in enumerate(spectra)
    }


def _described(found: Any) -> Case:
    content = found.to_dict()
    return {name: content[name] for name in ("bulk", "edges", "intervals", "atom", "outliers")}


def fitted(case: Case) -> Case:
    """Choice and predictions of an estimator on data of its own; needs scikit-learn."""
    from firststep import OneStepClassifier, OneStepRegressor

    (n, d, width), arguments = case["shape"], dict(case["arguments"])
    target, weighted = arguments.pop("target"), arguments.pop("weighted", False)
    rng = np.random.default_rng(case["seed"])
    # Correlated columns, without a matrix product: the estimators divide the rows by a hash of their bits.
    inputs = rng.standard_normal((n + 5, d))
    inputs[:, 1:] += 0.5 * inputs[:, :-1]
    signal = np.tanh(inputs[:, 0]) + 0.2 * inputs[:, 1] + 0.1 * rng.standard_normal(n + 5)
    weights = rng.integers(0, 3, n) if weighted else None
    options = {"width": width, "random_state": case["seed"], **arguments}
    if target.startswith("classes"):
        count = int(target.removeprefix("classes"))
        labels = np.searchsorted(np.quantile(signal, np.arange(1, count) / count), signal)
        model = OneStepClassifier(**options).fit(inputs[:n], labels[:n], weights)
        values = {"decision": model.decision_function(inputs[n:])}
    else:
        targets = signal if target == "one" else np.stack([signal, inputs[:, 2] ** 2], axis=1)
        model = OneStepRegressor(**options).fit(inputs[:n], targets[:n], weights)
        values = {}
    path = model.loo_path_
    return {
        **values,
        "predictions": model.predict(inputs[n:]),
        "step_size": model.step_size_,
        "ridge": model.ridge_,
        "intercept": model.intercept_,
        "direction": np.atleast_2d(model.direction_)[:, :5],
        "spectrum": model.spectrum_[:5],
        "tried": path["step_sizes"],
        "errors": path["errors"][:, ::6],
        "gain": path["gain"],
        "gain_stderr": path["gain_stderr"],
    }


COMPUTED: dict[str, Callable[[Case], Case]] = {
    "predictions": predicted,
    "simulations": simulated,
    "spectra": spectrum,
    "fits": fitted,
}


def plain(value: Any) -> Any:
    """Lists, dictionaries, strings and numbers; what is not finite becomes a string."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def compute(group: str, case: Case) -> Case:
    """Numbers of one case, or the error it raises; some warn about the theory's assumptions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            return dict(plain(COMPUTED[group](case)))
        except Exception as error:
            return {"raises": type(error).__name__, "message": str(error)}


class Difference(NamedTuple):
    """How two answers differ: the largest relative difference and where, unequal numbers and all of them."""

    largest: float
    where: str
    unequal: int
    numbers: int

    def accepted(self, tolerance: float) -> bool:
        """Whether all is well; at tolerance 0 no number may differ at all."""
        return self.largest <= tolerance and (tolerance > 0 or not self.unequal)

    def plus(self, other: "Difference") -> "Difference":
        """Of two answers together; the worst of both."""
        worst = other if other.largest > self.largest or not self.where else self
        return Difference(
            worst.largest, worst.where, self.unequal + other.unequal, self.numbers + other.numbers
        )


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every number or string in nested lists and dictionaries, with its place."""
    if isinstance(value, dict | list) and not value:
        yield f"{name} (empty)", 0
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves(part, f"{name}[{index}]")
    else:
        yield name, value


def compared(golden: Case, found: Case, tolerance: float) -> Difference:
    """Difference between golden values and those found.

    Relative to the golden number; differences below a tenth of the tolerance are none. What is missing, or is
    no number on one side only, differs by infinity. A name at the top that golden lacks is left alone.
    """
    wanted = dict(leaves(golden))
    have = dict(leaves({name: value for name, value in found.items() if name in golden}))
    largest, where, unequal = 0.0, "", 0
    for name in dict.fromkeys((*wanted, *have)):
        one, other = wanted.get(name), have.get(name)
        if one == other and name in wanted and name in have:
            continue
        unequal += 1
        relative = math.inf
        if isinstance(one, int | float) and isinstance(other, int | float):
            gap = abs(other - one)
            relative = 0.0 if gap <= FLOOR * tolerance else gap / abs(one) if one else math.inf
        if relative >= largest:
            largest, where = relative, name
    return Difference(largest, where, unequal, len(wanted))


def arithmetic() -> str:
    """Hash of some products, factorisations and functions: equal where bits can be expected to be equal."""
    from scipy import linalg, special

    rng = np.random.default_rng(0)
    digest = hashlib.sha256()
    for dtype in (np.float64, np.float32):
        for shape in ((150, 100), (301, 77), (64, 240)):
            matrix: Any = rng.standard_normal(shape).astype(dtype)
            gram = matrix.T @ matrix + np.eye(shape[1], dtype=dtype)
            parts = [gram, matrix @ matrix[0], linalg.cho_factor(gram)[0], linalg.eigvalsh(gram)]
            parts += [np.linalg.inv(gram), matrix.sum(axis=0)]
            parts += [apply(matrix) for apply in (np.tanh, np.exp, np.sin, special.erf)]
            for part in parts:
                digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]


def _computed(group: str, cases: Mapping[str, Any]) -> list[Case]:
    """Entries of a group, computed now."""
    started, entries = time.perf_counter(), []
    for name, case in cases.items():
        values = compute(group, case)
        if "raises" in values:
            print(f"{name} raises {values['raises']}: {values.pop('message')}")
        entries.append({"name": name, "case": case, "values": values})
    print(f"{group:12s} {len(entries):4d} cases  {time.perf_counter() - started:6.1f} s")
    return entries


def make(path: Path) -> None:
    """Compute every case and write the file."""
    _write(path, {group: _computed(group, cases()) for group, cases in CASES.items()})


def renew(path: Path, groups: Sequence[str]) -> None:
    """Compute the cases of these groups of the file again, for a change that means to change their numbers."""
    content = load(path)
    for group in groups:
        content[group] = _computed(group, {entry["name"]: entry["case"] for entry in content[group]})
    _write(path, content)


def kind_of(group: str, case: Case) -> str:
    """What of REASONS explains other numbers than before; else the theory's name, or the group's."""
    arguments = case["arguments"]
    if group == "predictions":
        structured = arguments["theory"] == "unified" and arguments.get("rest", "structured") == "structured"
        return "structured rest" if structured else str(arguments["theory"])
    if group == "spectra":
        return "predicted spectra" if "points" in arguments else "other spectra"
    return group


def since(before: Path, now: Path) -> dict[str, tuple[int, int, float]]:
    """By kind: cases, those beyond the tolerance of their group, and the largest relative difference."""
    found: dict[str, tuple[int, int, float]] = {}
    latest = load(now)
    for group, entries in load(before).items():
        values = {entry["name"]: entry for entry in latest[group]}
        for entry in entries:
            if entry["case"] != values[entry["name"]]["case"]:
                raise ValueError(f"{entry['name']} is another case in {now}: compare files of the same cases")
            one = compared(entry["values"], values[entry["name"]]["values"], TOLERANCES[group])
            kind = kind_of(group, entry["case"])
            cases, beyond, largest = found.get(kind, (0, 0, 0.0))
            beyond += not one.accepted(TOLERANCES[group])
            found[kind] = (cases + 1, beyond, max(largest, one.largest))
    return found


def tell_since(before: Path, now: Path) -> None:
    """Print what has changed, and why."""
    for kind, (cases, beyond, largest) in since(before, now).items():
        print(
            f"{kind:18s} {cases:4d} cases, {beyond:3d} beyond the tolerance, largest difference {largest:.1e}"
        )
        if kind in REASONS:
            print(f"{'':18s} changelog: {REASONS[kind]} …")


def _write(path: Path, content: Mapping[str, Sequence[Case]]) -> None:
    """One line for each case."""
    lines = []
    for group, entries in content.items():
        rows = (json.dumps(entry, separators=(",", ":"), allow_nan=False) for entry in entries)
        lines.append(f"{json.dumps(group)}:[\n" + ",\n".join(rows) + "\n]")
    head = f'{{"arithmetic":{json.dumps(arithmetic())},\n'
    path.write_text(head + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


def load(path: Path) -> dict[str, list[Case]]:
    """Entries of every group of a file, which may be compressed."""
    content = _content(path)
    return {group: content[group] for group in CASES}


def _content(path: Path) -> Any:
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def same_arithmetic(path: Path) -> bool:
    """Whether the file was made with libraries that round as those here do."""
    return bool(_content(path)["arithmetic"] == arithmetic())


def checked(group: str, entries: Sequence[Case], tolerance: float) -> Difference:
    """Compute entries of a group again; the difference says in which case the worst number is."""
    total = Difference(0.0, "", 0, 0)
    for entry in entries:
        found = compute(group, entry["case"])
        one = compared(entry["values"], found, tolerance)
        if one.unequal:
            reason = f"raises {found['raises']}: {found['message']}" if "raises" in found else one.where
            one = one._replace(where=f"{entry['name']} {reason}")
        total = total.plus(one)
    return total


def check(path: Path, tolerances: Mapping[str, float], only: str) -> bool:
    """Compute every case of the file again, print what differs, and tell whether all is well."""
    good = True
    if not same_arithmetic(path):
        print("The libraries round otherwise than when the file was made: small differences are no surprise.")
    for group, entries in load(path).items():
        chosen = [entry for entry in entries if only in entry["name"]]
        if not chosen:
            continue
        started, tolerance = time.perf_counter(), tolerances[group]
        found = checked(group, chosen, tolerance)
        fine = found.accepted(tolerance)
        good &= fine
        print(
            f"{group:12s} {len(chosen):4d} cases  {found.unequal:6d} of {found.numbers:6d} numbers unequal  "
            f"largest relative difference {found.largest:.1e} (tolerance {tolerance:.0e})  "
            f"{'ok' if fine else 'WRONG'}  {time.perf_counter() - started:6.1f} s"
        )
        if found.where:
            print(f"{'':12s} worst: {found.where}")
    return good


def tolerances_of(given: Sequence[str]) -> dict[str, float]:
    """Tolerances from "VALUE" for all groups or "GROUP=VALUE" for one."""
    found = dict(TOLERANCES)
    for text in given:
        group, _, value = text.rpartition("=")
        if group and group not in found:
            raise ValueError(f"a tolerance is for one of {', '.join(found)}; got {group!r}")
        found |= dict.fromkeys([group] if group else found, float(value))
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make", help="compute and write").add_argument("file", type=Path)
    renewing = commands.add_parser("renew", help="compute some groups of a file again and write them")
    renewing.add_argument("file", type=Path)
    renewing.add_argument("groups", nargs="+", choices=list(CASES))
    checking = commands.add_parser("check", help="compute again and compare")
    checking.add_argument("file", type=Path)
    checking.add_argument(
        "--tolerance",
        action="append",
        default=[],
        metavar="[GROUP=]VALUE",
        help="largest relative difference",
    )
    checking.add_argument("--only", default="", help="part of the names of the cases to check")
    comparing = commands.add_parser("since", help="which numbers of two files differ, and why")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("now", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "since":
        tell_since(arguments.before, arguments.now)
    elif arguments.command == "make":
        make(arguments.file)
    elif arguments.command == "renew":
        renew(arguments.file, arguments.groups)
    else:
        sys.exit(0 if check(arguments.file, tolerances_of(arguments.tolerance), arguments.only) else 1)


if __name__ == "__main__":
    main()
