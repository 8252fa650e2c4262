r"""Simulated spectra: eigenvalues of the weights, the gradient and the features, their outliers and singular vectors.

Everything is measured on the same draws as the errors of `firststep.simulate.simulate`, many step sizes on one draw.
All eigenvalues come from a dense method, a few of them and their vectors from an iterative one, and only what is asked
for is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from scipy.sparse.linalg import LinearOperator, eigsh
from scipy.special import ai_zeros
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from firststep import arrays as network
from firststep.arrays import Matrix
from firststep.compute.processes import ensure_memory
from firststep.gaussian import Array, hermite_polynomials
from firststep.results import Distances, DrawnSpectrum, FoundOutliers, Spectrum, spectrum_of
from firststep.results.drawn import ROUNDING
from firststep.setting import Problem, Sizes, check_whole, later_steps_of, step_sizes_of
from firststep.setting.doors import door
from firststep.simulate import Draw
from firststep.simulate.replica import RULES

# Largest l of the spiked approximations F_l.
SPIKES = 3
KINDS = ("features", "weights", "gradient", *(f"spiked{k}" for k in range(SPIKES + 1)))
# Samples or neurons for each of the d^2/2 quadratic directions from which on the norm of x is a feature of its own.
RESOLVED = 0.1
# Hermite degrees, monomials and powers of the readout whose overlaps are measured.
DEGREES, MONOMIALS, POWERS = 4, 3, 3
# An outlier lies this many spacings (Tracy-Widom's scale) above the edge that the eigenvalues below it point to.
OUTLIER_SPACINGS = 5.0
# Eigenvalues below the candidate that are skipped, and those that the edge is read from.
SKIPPED, FITTED = 2, 18
MOST_OUTLIERS = 12


def find_outliers(
    eigenvalues: ArrayLike, *, spacings: float = OUTLIER_SPACINGS, most: int = MOST_OUTLIERS
) -> FoundOutliers:
    r"""Number of eigenvalues above the bulk, by a rule that needs no eyes and no theory.

    At a square-root edge E the k-th largest eigenvalue of a bulk lies near :math:`E - s\,|a_k|`, where a_k is the k-th
    zero of the Airy function and s the scale of its fluctuations. E and s are fitted to the 3rd … 20th eigenvalue below
    the candidates; the candidates are the eigenvalues above :math:`E + 5 s` that this leaves, as few as are consistent
    [firststep, spectra, eq. 7]. Of 2220 draws without an outlier, n from 200 to 1000, one showed a false one.

    Parameters
    ----------
    eigenvalues : array_like
        Of one matrix, the largest `most` + 20 at least, in any order.
    spacings : float
        How far above the edge an outlier must lie, in units of s.
    most : int
        Most outliers looked for.

    Examples
    --------
    >>> values = np.linspace(0, 1, 400) ** 0.5 * 2
    >>> find_outliers(values).count, find_outliers([*values, 3.0]).count
    (0, 1)
    """
    values = np.sort(np.asarray(eigenvalues, dtype=float).ravel())[::-1]
    fitted = min(FITTED, len(values) - SKIPPED - 1)
    if fitted < 4:
        raise ValueError(f"outliers need at least {SKIPPED + 5} eigenvalues, got {len(values)}")
    zeros = -ai_zeros(SKIPPED + fitted)[0]
    design = np.stack([np.ones(fitted), -zeros[SKIPPED:]], axis=1)
    for count in range(min(most, len(values) - SKIPPED - fitted) + 1):
        below = values[count + SKIPPED : count + SKIPPED + fitted]
        edge, spacing = np.linalg.lstsq(design, below, rcond=None)[0]
        if values[count] <= edge + spacings * spacing:
            break
    return FoundOutliers(count, float(edge), float(spacing))


@overload
def simulate_spectrum(
    problem: Problem,
    sizes: Sizes,
    step_size: float | None = ...,
    of: str = ...,
    *,
    step_exponent: float | None = ...,
    next_step_sizes: ArrayLike = ...,
    next_step_exponents: ArrayLike = ...,
    replicas: int = ...,
    seed: int = ...,
    bulk: bool = ...,
    overlaps: bool = ...,
    count: int | None = ...,
    bins: int | None = ...,
    dtype: str = ...,
) -> Spectrum: ...


@overload
def simulate_spectrum(
    problem: Problem,
    sizes: Sizes,
    step_size: Sequence[float] | Array,
    of: str = ...,
    *,
    step_exponent: None = ...,
    next_step_sizes: ArrayLike = ...,
    next_step_exponents: ArrayLike = ...,
    replicas: int = ...,
    seed: int = ...,
    bulk: bool = ...,
    overlaps: bool = ...,
    count: int | None = ...,
    bins: int | None = ...,
    dtype: str = ...,
) -> tuple[Spectrum, ...]: ...


@overload
def simulate_spectrum(
    problem: Problem,
    sizes: Sizes,
    step_size: None = ...,
    of: str = ...,
    *,
    step_exponent: Sequence[float] | Array,
    next_step_sizes: ArrayLike = ...,
    next_step_exponents: ArrayLike = ...,
    replicas: int = ...,
    seed: int = ...,
    bulk: bool = ...,
    overlaps: bool = ...,
    count: int | None = ...,
    bins: int | None = ...,
    dtype: str = ...,
) -> tuple[Spectrum, ...]: ...


@door
def simulate_spectrum(
    problem: Problem,
    sizes: Sizes,
    step_size: ArrayLike | None = None,
    of: str = "features",
    *,
    step_exponent: ArrayLike | None = None,
    next_step_sizes: ArrayLike = (),
    next_step_exponents: ArrayLike = (),
    replicas: int = 1,
    seed: int = 0,
    bulk: bool = True,
    overlaps: bool = True,
    count: int | None = None,
    bins: int | None = None,
    dtype: str = "float64",
) -> Spectrum | tuple[Spectrum, ...]:
    r"""Eigenvalues of the features or of the weights of drawn networks, with outliers and overlaps.

    Parameters
    ----------
    problem, sizes
        What is studied.
    step_size : float or array (S,), optional
        :math:`\eta \ge 0`; 0 gives :math:`W_0` and :math:`F_0`. Several are taken on the same draws. Give this or
        `step_exponent`; the plural names are understood too.
    step_exponent : float or array (S,), optional
        :math:`\alpha`, :math:`\eta = n_0^\alpha`.
    next_step_sizes, next_step_exponents : float or sequence of float
        Sizes of a second step and of further ones, taken after every first one. Give one of the two or neither.
    of : {"features", "weights", "gradient", "spiked0", …, "spiked3"}
        Eigenvalues of :math:`F F^\top/n`, :math:`W_1 W_1^\top`, :math:`G G^\top` or :math:`F_\ell F_\ell^\top/n`, the
        last being the approximation with spikes up to l [Moniri24, spectrum of the features].
    replicas, seed
        Independent draws; those of `firststep.simulate.simulate` with the same seed.
    bulk : bool
        Whether all eigenvalues are wanted (a dense method) or only the largest (an iterative one).
    overlaps : bool
        Whether to measure the singular vectors of the outliers.
    count : int, optional
        Outliers to report; by default those that `find_outliers` finds in the median draw.
    bins : int, optional
        Bars of the histogram.
    dtype : {"float64", "float32"}
        Precision of data, weights and features; spectra are computed in float64.

    Returns
    -------
    Spectrum, or a tuple of them for several step sizes
        Outliers are means over draws. Overlaps of features: ``"h0"`` … ``"h4"`` with Hermite polynomials of
        :math:`z = x\cdot v/|v|`, ``"z2"``, ``"z3"`` with its monomials, ``"beta"`` with :math:`\beta\cdot
        x`, ``"norm"`` with the norm of x where :math:`d^2/20` is less than n or N (left singular vector),
        ``"a1"`` … ``"a3"`` with the powers of the readout (right singular
        vector); v is the vector that all neurons share after the step, along b for an initial output that
        vanishes and along :math:`W_0^\top a + \eta c_1 b` for one of order one. Of weights: ``"beta"`` and
        ``"direction"`` (v, input side) and ``"a1"`` (neuron side). A teacher of several directions has also ``"t1"``,
        ``"t2"``, …, and ``"beta"`` is the direction that one step sees. For inputs with a covariance S, weights are
        those that act on x, ``"beta"`` stands for :math:`S^{1/2}\beta` there, along which :math:`E[x y]` lies, and
        ``"whitened"`` is the overlap of the vector times :math:`S^{1/2}` with beta itself. After several steps, v is
        still that of the first. In `details`: ``eigenvalues``, a list
        with an array for each draw in descending order; ``counts``, outliers of each draw; ``edges``, the
        bulk's upper edge in each; ``stderr``, standard errors of the outliers; ``samples``, their
        eigenvalues (draws, outliers).

    Examples
    --------
    >>> found = simulate_spectrum(Problem("tanh", "identity"), Sizes(200, 100, 150), 8.0, replicas=2)
    >>> len(found.outliers), found.outliers[0].overlaps["h1"] > 0.9
    (1, True)
    """
    steps = step_sizes_of(sizes, step_size, step_exponent)
    if of not in KINDS:
        raise ValueError(f"of must be one of {', '.join(KINDS)}; got {of!r}")
    later = later_steps_of(sizes, next_step_sizes, next_step_exponents)
    if later.size and of.startswith("spiked"):
        raise ValueError(f"{of} approximates the features after one step: leave out next_step_sizes")
    check_whole("replicas", replicas, 1)
    if count is not None:
        check_whole("count", count, 0)
    asked = _Asked(of, bulk, overlaps, count)
    ensure_memory(_bytes_of(sizes, of), f"a drawn spectrum of {sizes}", "use smaller sizes")
    with threadpool_limits(limits=1):
        draws = [
            _Network(Draw(problem, sizes, seed, index, dtype), later).measure(steps, asked)
            for index in range(replicas)
        ]
    also = {"seed": seed} | ({"next_step_sizes": later.tolist()} if later.size else {})
    spectra = []
    for i, step in enumerate(steps):
        found = spectrum_of([draw[i] for draw in draws], problem, sizes, float(step), of, count, bins)
        spectra.append(replace(found, details={**found.details, **also}))
    return (
        spectra[0]
        if np.ndim(cast(Any, step_exponent if step_size is None else step_size)) == 0
        else tuple(spectra)
    )


def _bytes_of(sizes: Sizes, of: str) -> int:
    """What one draw holds at once: inputs, weights, slopes of the step, and features with their Gram matrix."""
    n, d, width, first = sizes.n_samples, sizes.dim, sizes.width, sizes.n_step_samples
    numbers = first * d + 3 * width * d + 2 * first * width
    if of not in ("weights", "gradient"):
        numbers += n * d + 3 * n * width + 2 * min(n, width) ** 2
    return 8 * numbers


@dataclass(frozen=True)
class _Asked:
    """What is asked of every draw."""

    of: str
    bulk: bool
    overlaps: bool
    count: int | None


class _Network:
    """One drawn network and what several step sizes share; in whitened coordinates."""

    def __init__(self, draw: Draw, later: Array | tuple[float, ...] = ()) -> None:
        self.draw, self.problem, self.sizes, self.later = draw, draw.problem, draw.sizes, later
        self.weights, self.readout = draw.whitened_weights(), draw.readout()
        self.root = np.ones(self.sizes.dim) if draw.root is None else draw.root
        self.step_inputs, self.step_labels = draw.step_sample()
        self.step = self._step(self.weights, self.step_inputs, self.step_labels)
        self.direction = self.step.direction.astype(np.float64)
        self.last = self.weights, self.step.gradient

    def _step(self, weights: Matrix, inputs: Matrix, labels: Matrix) -> network.Step:
        scale = self.problem.output_law.scale(self.sizes.width)
        step = network.gradient_step(inputs, labels, weights, self.readout, self.problem.activation, scale)
        return RULES[self.problem.rule.name](step, self.draw.root, self.readout)

    def take_later(self, step_size: float) -> float:
        """Take all steps but the last, which `last` then holds; gives the size of that."""
        weights, change, size = self.weights, self.step.gradient, step_size
        for number, following in enumerate(self.later, start=2):
            weights = weights + weights.dtype.type(size) * change
            fresh = self.problem.later_samples.fresh
            sample = self.draw.step_sample(number) if fresh else (self.step_inputs, self.step_labels)
            change, size = self._step(weights, *sample).gradient, float(following)
        self.last = weights, change
        return size

    def fit_inputs(self) -> None:
        """Draw the sample of the fit and the preactivations on it, before the last step and by it."""
        if not hasattr(self, "inputs"):
            fresh = self.problem.fitted_on.fresh
            self.inputs = self.draw.fit_sample()[0] if fresh else self.step_inputs
        self.before, self.change = (self.inputs @ part.T for part in self.last)

    def features(self, step_size: float) -> Array:
        """F at this step size, in float64."""
        return cast(
            Array,
            self.problem.activation(self.before + self.before.dtype.type(step_size) * self.change).astype(
                np.float64
            ),
        )

    def spiked(self, step_size: float, spikes: int) -> Array:
        """F_l at this step size [Moniri24, spectrum of the features]."""
        result = self.features(0.0)
        projections = self.inputs.astype(np.float64) @ self.direction
        readout = self.readout.astype(np.float64)
        strengths = network.spike_coefficients(self.problem.activation, step_size, spikes) if spikes else ()
        for k, strength in enumerate(strengths, start=1):
            if strength:
                result += strength * np.multiply.outer(projections**k, readout**k)
        return result

    def shared(self, step_size: float) -> Array:
        """v, the vector that all neurons share after the step, each in proportion to its readout."""
        if not self.problem.output_law.order_one or step_size == 0:
            return self.direction
        slope = float(self.problem.activation.hermite(2)[1])
        output = self.weights.T.astype(np.float64) @ self.readout.astype(np.float64)
        return np.asarray(output + step_size * slope * self.direction)

    def measure(self, step_sizes: Array, asked: _Asked) -> list[DrawnSpectrum]:
        """Spectra at all step sizes."""
        measured, of = [], asked.of
        on_data = of == "features" or of.startswith("spiked")
        for i, step_size in enumerate(step_sizes):
            step = float(step_size)
            last = self.take_later(step)
            if on_data and (i == 0 or len(self.later)):
                self.fit_inputs()
            if on_data:
                kind = int(of.removeprefix("spiked")) if of != "features" else None
                matrix = self.features(last) if kind is None else self.spiked(step, kind)
                matrix /= math.sqrt(self.sizes.n_samples)
            else:
                matrix = self.last[1].astype(np.float64)
                if of == "weights":
                    matrix = self.last[0].astype(np.float64) + last * matrix
                if self.draw.root is not None:
                    matrix /= self.root
            gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
            values = _eigenvalues(gram, asked.bulk)
            found = find_outliers(values)
            wanted = found.count if asked.count is None else asked.count
            squares: list[dict[str, float]] = []
            if asked.overlaps and wanted:
                left, right = top_vectors(matrix, wanted, gram)
                squares = (
                    self._weight_overlaps(step, left, right)
                    if of in ("weights", "gradient")
                    else self._feature_overlaps(step, left, right)
                )
            measured.append(DrawnSpectrum(values, found, squares, len(matrix), asked.bulk))
        return measured

    def _feature_overlaps(self, step_size: float, left: Array, right: Array) -> list[dict[str, float]]:
        inputs = self.inputs.astype(np.float64)
        shared = self.shared(step_size)
        norm = np.linalg.norm(shared)
        z = inputs @ shared / (norm if norm else 1.0)
        readout = self.readout.astype(np.float64)
        functions = {
            f"h{k}": row for k, row in enumerate(hermite_polynomials(z, DEGREES + 1, normalised=True))
        }
        functions |= {f"z{k}": z**k for k in range(2, MONOMIALS + 1)}
        functions["beta"] = inputs @ self.draw.beta
        if max(self.sizes.n_samples, self.sizes.width) > RESOLVED * self.sizes.dim**2 / 2:
            functions["norm"] = (inputs**2).sum(axis=1) - self.sizes.dim
        functions |= {name: inputs @ beta for name, beta in self._several().items()}
        powers = {f"a{k}": readout**k for k in range(1, POWERS + 1)}
        return [
            {name: _overlap(u, f) for name, f in functions.items()}
            | {name: _overlap(v, f) for name, f in powers.items()}
            for u, v in zip(left.T, right.T, strict=True)
        ]

    def _several(self) -> dict[str, Array]:
        """The directions of a teacher of several, by name."""
        betas = self.draw.betas
        return {f"t{k + 1}": beta for k, beta in enumerate(betas.T)} if betas.shape[1] > 1 else {}

    def _weight_overlaps(self, step_size: float, left: Array, right: Array) -> list[dict[str, float]]:
        known = {"beta": self.draw.beta * self.root, "direction": self.shared(step_size) / self.root}
        known |= {name: beta * self.root for name, beta in self._several().items()}
        found = []
        for u, v in zip(left.T, right.T, strict=True):
            own = {name: _overlap(v, vector) for name, vector in known.items()}
            own["a1"] = _overlap(u, self.readout.astype(np.float64))
            if self.draw.root is not None:
                own["whitened"] = _overlap(v * self.root, self.draw.beta)
            found.append(own)
        return found


def _overlap(vector: Array, function: Array) -> float:
    """Squared cosine."""
    size = float(function @ function) * float(vector @ vector)
    return float(vector @ function) ** 2 / size if size else 0.0


def _eigenvalues(gram: Array, bulk: bool) -> Array:
    """Eigenvalues in descending order: all of them, or as many as the rule for outliers needs."""
    wanted = MOST_OUTLIERS + SKIPPED + FITTED
    if bulk or wanted > len(gram) // 4:
        return np.asarray(np.maximum(linalg.eigvalsh(gram, check_finite=False), 0.0)[::-1])
    start = np.cos(np.arange(len(gram)) + 1.0)
    values = eigsh(gram, k=wanted, which="LA", v0=start, return_eigenvectors=False, ncv=3 * wanted)
    return np.sort(values)[::-1]


def top_vectors(matrix: Matrix, count: int, gram: Array | None = None) -> tuple[Array, Array]:
    """Left and right singular vectors of the largest singular values, as columns, by an iterative method.

    Examples
    --------
    >>> left, right = top_vectors(np.diag([1.0, 5.0, 2.0]), 1)
    >>> np.abs(left[:, 0]).round(6).tolist()
    [0.0, 1.0, 0.0]
    """
    tall = matrix.shape[0] > matrix.shape[1]
    if gram is None:
        gram = matrix.T @ matrix if tall else matrix @ matrix.T
    size = len(gram)
    if count > size // 4 or size < 32:
        values, vectors = linalg.eigh(gram, subset_by_index=(max(0, size - count), size - 1))
    else:
        # A fixed start keeps every digit the same from run to run.
        values, vectors = eigsh(gram, k=count, which="LA", v0=np.cos(np.arange(size) + 1.0))
    vectors = vectors[:, np.argsort(values)[::-1]]
    other = matrix @ vectors if tall else matrix.T @ vectors
    norms = np.linalg.norm(other, axis=0)
    other = other / np.where(norms > 0, norms, 1.0)
    return (other, vectors) if tall else (vectors, other)


def feature_distances(
    problem: Problem,
    sizes: Sizes,
    step_size: float | Sequence[float] | Array,
    *,
    spikes: Sequence[int] = (0, 1, 2, 3),
    replicas: int = 1,
    seed: int = 0,
) -> Distances:
    r"""How far the features are from their approximations with l spikes: :math:`\|F - F_\ell\|/\sqrt n`.

    .. math:: F_\ell = F_0 + \sum_{k=1}^{\ell} c_1^k c_k \eta^k (\tilde X b)^{\circ k} (a^{\circ k})^\top

    [Moniri24, spectrum of the features]. It tends to zero in the window of l if :math:`c_2 = 0`; otherwise the
    growth of the rows' norms
    by the rest of the gradient leaves a remainder [firststep, spectra, eq. 8].

    Examples
    --------
    >>> found = feature_distances(Problem("tanh", "identity"), Sizes(200, 100, 150), 4.0, spikes=(0, 1))
    >>> bool(found.mean[0, 1] < found.mean[0, 0])
    True
    """
    steps = step_sizes_of(sizes, step_size, None)
    check_whole("replicas", replicas, 1)
    for count in spikes:
        check_whole("spikes", count, 0)
    samples = np.empty((replicas, len(steps), len(spikes)))
    with threadpool_limits(limits=1):
        for index in range(replicas):
            drawn = _Network(Draw(problem, sizes, seed, index))
            drawn.fit_inputs()
            for i, step in enumerate(steps):
                after = drawn.features(float(step))
                for j, count in enumerate(spikes):
                    gap = after - drawn.spiked(float(step), count)
                    samples[index, i, j] = _norm(gap) / math.sqrt(sizes.n_samples)
    return Distances.of(tuple(f"spiked{count}" for count in spikes), samples)


def gradient_distances(problem: Problem, sizes: Sizes, *, replicas: int = 1, seed: int = 0) -> Distances:
    r"""How far the gradient is from rank one: :math:`\|G - c_1 a b^\top\|`.

    ``"direction"`` has :math:`b = X^\top (y - f_0)/n_0`, ``"labels"`` has :math:`b = X^\top y/n_0`, which
    is the rank-one part only if the initial output vanishes [Moniri24, Prop. 1; firststep]. The shapes have
    one step size, because none plays a part.

    Examples
    --------
    >>> found = gradient_distances(Problem("tanh", "identity", initial_output="order_one"), Sizes(400, 200, 300))
    >>> bool(found.mean[0, 0] < found.mean[0, 1])
    True
    """
    check_whole("replicas", replicas, 1)
    if not problem.rule.plain:
        raise ValueError(
            f"the distance to rank one is that of the gradient, got step_rule={problem.rule.name!r}"
        )
    samples = np.empty((replicas, 1, 2))
    slope = float(problem.activation.hermite(2)[1])
    with threadpool_limits(limits=1):
        for index in range(replicas):
            drawn = _Network(Draw(problem, sizes, seed, index))
            labels = drawn.step_inputs.T @ drawn.step_labels / sizes.n_step_samples
            given = network.Step(drawn.step.gradient, labels)
            plain = network.gradient_rule(given, drawn.draw.root, drawn.readout).direction
            for j, direction in enumerate((drawn.direction, plain)):
                rank_one = slope * np.multiply.outer(drawn.readout, direction)
                samples[index, 0, j] = _norm(drawn.step.gradient - rank_one)
    return Distances.of(("direction", "labels"), samples)


def _norm(matrix: Array) -> float:
    """Largest singular value."""
    if min(matrix.shape) < 32:
        return float(np.linalg.norm(matrix, 2))
    size = matrix.shape[1]
    product = LinearOperator((size, size), matvec=lambda v: matrix.T @ (matrix @ v.ravel()), dtype=np.float64)
    start = np.cos(np.arange(size) + 1.0)
    return math.sqrt(max(0.0, float(eigsh(product, k=1, v0=start, tol=1e-8, return_eigenvectors=False)[0])))


def cumulative(spectrum: Spectrum, x: ArrayLike) -> Array:
    """Share of eigenvalues up to x that a predicted spectrum gives, its atom at zero included.

    Examples
    --------
    >>> from firststep.theory.spectra.spectrum import predict_spectrum
    >>> found = predict_spectrum(Problem("tanh", "identity"), Sizes(200, 100, 150), 0.0, of="weights")
    >>> print(f"{cumulative(found, 100.0):.4f}")
    1.0000
    """
    places, shares = [np.zeros(1)], [np.array([spectrum.atom])]
    for low, high in spectrum.intervals:
        own = (spectrum.x > low) & (spectrum.x < high)
        # Linear in the angle that unfolds the edges, in the root of the eigenvalue: exact at both kinds of edge.
        root = np.sqrt(np.concatenate([[low], spectrum.x[own], [high]]))
        heights = 2 * root[1:-1] * spectrum.density[own]
        first = heights[0] if low == 0 else 0.0
        heights = np.concatenate([[first], heights, [0.0]])
        pieces = (heights[1:] + heights[:-1]) / 2 * np.diff(root)
        places.append(root**2)
        shares.append(shares[-1][-1] + np.concatenate([[0.0], np.cumsum(pieces)]))
    return np.asarray(np.interp(np.asarray(x, dtype=float), np.concatenate(places), np.concatenate(shares)))


def kolmogorov_distance(simulated: Spectrum, predicted: Spectrum) -> float:
    """Largest difference between the shares of eigenvalues up to x that were simulated and predicted.

    Needs a simulation with `bulk`; all draws are taken together.

    Examples
    --------
    >>> from firststep.theory.spectra.spectrum import predict_spectrum
    >>> setting = Problem("tanh", "identity"), Sizes(200, 100, 150), 0.0
    >>> kolmogorov_distance(simulate_spectrum(*setting), predict_spectrum(*setting)) < 0.02
    True
    """
    if not len(simulated.x):
        raise ValueError("the simulated spectrum has no bulk: simulate with bulk=True")
    zeros = int(simulated.details["zeros"])
    values = np.sort(
        np.concatenate([np.append(one, np.zeros(zeros)) for one in simulated.details["eigenvalues"]])
    )
    values = np.where(values > ROUNDING * values[-1], values, 0.0)
    predicted_share = cumulative(predicted, values)
    steps = np.arange(len(values) + 1) / len(values)
    positive = values > 0
    above = np.abs(steps[1:] - predicted_share)[positive]
    below = np.abs(steps[:-1] - predicted_share)[positive]
    return float(max(above.max(), below.max(), abs(float((~positive).mean()) - predicted.atom)))
