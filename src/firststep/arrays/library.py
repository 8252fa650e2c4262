"""Arrays of NumPy and of other libraries: where they live, how they come home, activations on them.

NumPy's arrays take the fast path everywhere and nothing is imported for them. Any other array, a PyTorch tensor for
one, is handled through its library's array API: what grows with a product of two sizes is computed where the array
lives, what is small, or needs LAPACK's and SciPy's own routines, on the host.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firststep.gaussian import Array, Function

# Data, weights and features may be float32; whatever is solved or averaged from them is float64.
Matrix = NDArray[np.floating[Any]]

BACKENDS = ("numpy", "torch", "array_api_strict")
# A polynomial of at most this degree is evaluated as one wherever the array lives.
POLYNOMIAL_DEGREE = 30


def is_numpy(array: Any) -> bool:
    """Whether the fast path may be taken."""
    return isinstance(array, np.ndarray)


def namespace(array: Any) -> Any:
    """The array API of the library that an array other than NumPy's belongs to."""
    return _compat().array_namespace(array)


def _compat() -> Any:
    try:
        return import_module("array_api_compat")
    except ImportError:
        raise ImportError(
            "arrays other than NumPy's need array-api-compat: pip install 'firststep[torch]'"
        ) from None


def host(array: Any) -> Array:
    """The array as NumPy's, in float64.

    Examples
    --------
    >>> host(np.ones(1, dtype=np.float32)).dtype
    dtype('float64')
    """
    if not is_numpy(array):
        array = _fetched(array)
    return np.asarray(array, dtype=np.float64)


def _fetched(array: Any) -> Any:
    """The array as NumPy's, in its own precision."""
    try:
        return np.asarray(array)
    except (TypeError, RuntimeError):
        # It is in another memory than the processor's.
        return np.asarray(_compat().to_device(array, "cpu"))


def like(values: Any, reference: Any) -> Any:
    """NumPy's values in the library and precision of another array, and where that lives.

    Examples
    --------
    >>> like(np.ones(1), np.ones(1, dtype=np.float32)).dtype
    dtype('float32')
    """
    if is_numpy(reference):
        return values.astype(reference.dtype, copy=False)
    # A copy, because a library may refuse memory that it must not write to.
    copied = np.array(values, dtype=dtype_name(reference))
    return namespace(reference).asarray(copied, device=_compat().device(reference))


def joined(one: Any, other: Any) -> Any:
    """The rows of one array above those of another.

    Examples
    --------
    >>> joined(np.zeros(1), np.ones(2)).tolist()
    [0.0, 1.0, 1.0]
    """
    return np.concatenate([one, other]) if is_numpy(one) else namespace(one).concat([one, other])


def dtype_name(array: Any) -> str:
    """float32 or float64."""
    return str(array.dtype).rpartition(".")[2]


def double(array: Any) -> Any:
    """The array in float64, where it is."""
    if is_numpy(array):
        return array.astype(np.float64, copy=False)
    xp = namespace(array)
    return xp.astype(array, xp.float64, copy=False)


def diagonal(matrix: Any) -> Array:
    """The diagonal as NumPy's own copy, in float64."""
    if is_numpy(matrix):
        return np.diagonal(matrix).astype(np.float64)
    return host(namespace(matrix).linalg.diagonal(matrix))


def norm(array: Any) -> float:
    """Square root of the sum of squares of all entries."""
    if is_numpy(array):
        return float(np.linalg.norm(array))
    xp = namespace(array)
    return math.sqrt(float(xp.sum(array * array)))


@dataclass(frozen=True)
class Library:
    """Where the arrays of a run live.

    Examples
    --------
    >>> Library("numpy").place(np.ones(2)).tolist()
    [1.0, 1.0]
    """

    backend: str = "numpy"
    device: str | None = None

    def check(self) -> None:
        """Say what is wrong with the names, or what is missing, before anything is drawn."""
        if self.backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {self.backend!r}")
        if self.backend == "numpy":
            if self.device not in (None, "cpu"):
                raise ValueError(
                    f"NumPy computes on the cpu, got device={self.device!r}: use backend='torch'"
                )
            return
        _compat()
        try:
            self.place(np.zeros(1))
        except ImportError:
            raise ImportError(
                f"backend={self.backend!r} needs {self.backend}: pip install {self.backend}"
            ) from None
        except (RuntimeError, AssertionError, ValueError, TypeError) as reason:
            raise ValueError(f"no arrays on device {self.device!r}: {reason}") from None

    def place(self, array: Matrix) -> Any:
        """The array in this library and on this device, in its own precision; NumPy's stays as it is."""
        if self.backend == "numpy":
            return array
        module = import_module(self.backend)
        if self.backend == "torch":
            return module.asarray(array, device=self.device)
        return module.asarray(array)

    def version(self) -> dict[str, str]:
        """Name and version of a library that is not NumPy."""
        if self.backend == "numpy":
            return {}
        return {self.backend: str(import_module(self.backend).__version__)}

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """Keep the library from using more than one thread of this processor."""
        if self.backend != "torch":
            yield
            return
        torch = import_module("torch")
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def activated(activation: Function, points: Any) -> Any:
    r"""Values :math:`\sigma(z)` of an array of another library."""
    xp = namespace(points)
    series = _polynomial(activation)
    if series is not None:
        return _clenshaw(series, points, xp)
    rule = _values(xp).get(activation.spec)
    if rule is None:
        return like(activation(_fetched(points)), points)
    values = rule(points)
    return values - activation.mean if activation.centred and activation.mean else values


def activated_slope(activation: Function, points: Any) -> Any:
    r"""Slopes :math:`\sigma'(z)` of an array of another library."""
    xp = namespace(points)
    series = _polynomial(activation)
    if series is not None:
        degrees = np.arange(1, len(series))
        return _clenshaw(degrees * series[1:] if len(series) > 1 else np.zeros(1), points, xp)
    rule = _slopes(xp).get(activation.spec)
    if rule is None:
        return like(activation.derivative(_fetched(points)), points)
    return rule(points)


def _polynomial(activation: Function) -> Array | None:
    """Hermite coefficients of an activation that is a polynomial."""
    if activation.kinks or activation.tail(POLYNOMIAL_DEGREE + 1) > 0:
        return None
    series = activation.hermite(POLYNOMIAL_DEGREE + 1)
    used = np.flatnonzero(series)
    return series[: used[-1] + 1] if used.size else np.zeros(1)


def _clenshaw(series: Array, points: Any, xp: Any) -> Any:
    """Sum over k of c_k H_k(x)."""
    upper, lower = xp.full_like(points, float(series[-1])), xp.zeros_like(points)
    for k in range(len(series) - 2, -1, -1):
        upper, lower = float(series[k]) + points * upper - (k + 1) * lower, upper
    return upper


def _logistic(points: Any, xp: Any) -> Any:
    # By tanh, which neither overflows nor loses digits.
    return 0.5 + 0.5 * xp.tanh(0.5 * points)


def _values(xp: Any) -> dict[str, Callable[[Any], Any]]:
    """Activations by name, in the functions that every library has; the others are computed on the host."""
    rules: dict[str, Callable[[Any], Any]] = {
        "relu": lambda z: xp.where(z > 0, z, xp.zeros_like(z)),
        "abs": xp.abs,
        "relu2": lambda z: xp.square(xp.where(z > 0, z, xp.zeros_like(z))),
        "tanh": xp.tanh,
        "sigmoid": lambda z: _logistic(z, xp),
        "silu": lambda z: z * _logistic(z, xp),
        "softplus": lambda z: xp.where(z > 0, z, xp.zeros_like(z)) + xp.log1p(xp.exp(-xp.abs(z))),
        "sin": xp.sin,
        "cos": xp.cos,
    }
    if hasattr(xp, "erf"):
        rules["erf"] = xp.erf
        rules["gelu"] = lambda z: z * (0.5 + 0.5 * xp.erf(z * math.sqrt(0.5)))
    return rules


def _slopes(xp: Any) -> dict[str, Callable[[Any], Any]]:
    rules: dict[str, Callable[[Any], Any]] = {
        "relu": lambda z: xp.astype(z > 0, z.dtype),
        "abs": xp.sign,
        "relu2": lambda z: 2 * xp.where(z > 0, z, xp.zeros_like(z)),
        "tanh": lambda z: 1 - xp.square(xp.tanh(z)),
        "sigmoid": lambda z: _logistic(z, xp) * _logistic(-z, xp),
        "silu": lambda z: _logistic(z, xp) * (1 + z * _logistic(-z, xp)),
        "softplus": lambda z: _logistic(z, xp),
        "sin": xp.cos,
        "cos": lambda z: -xp.sin(z),
        "erf": lambda z: 2 / math.sqrt(math.pi) * xp.exp(-z * z),
    }
    if hasattr(xp, "erf"):
        rules["gelu"] = lambda z: (
            0.5 + 0.5 * xp.erf(z * math.sqrt(0.5)) + z * xp.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        )
    return rules


def losses(labels: Any, coefficients: Array, design: Any) -> Array:
    """Squared errors (R, n) of the readouts (R, N) on the features (n, N)."""
    return host((labels - like(coefficients, design) @ design.T) ** 2)
