"""Probabilities from the outputs of ridge regression on -1 and 1."""

import numpy as np
from scipy.special import expit, softmax

from firststep.gaussian import Array

# A penalty, in samples, on the spread of the exponents: where outputs separate the classes of the samples at hand,
# they need not separate those of others.
PENALTY = 0.2
ROUNDS = 100


def probabilities(outputs: Array, sharpness: float) -> Array:
    """Probabilities (n, k) from outputs (n, k), or (n, 2) from the one output (n, 1) of two classes."""
    if outputs.shape[1] == 1:
        second = expit(sharpness * outputs[:, 0])
        return np.column_stack([1 - second, second])
    return np.asarray(softmax(sharpness * outputs, axis=1))


def calibrated(outputs: Array, signs: Array, counts: Array) -> tuple[float, Array]:
    r"""Sharpness and shifts with which the outputs of samples that were left out have the smallest log-loss.

    .. math:: p_k(x) \propto \exp(\alpha (f_k(x) + \beta_k))

    A Gaussian prior keeps sharpness times the spread of the outputs finite where they separate the classes.
    Newton's method on :math:`\alpha, \alpha\beta`; the loss is convex in them. For two classes there is one output,
    :math:`p = 1/(1 + e^{-\alpha (f + \beta)})`.
    """
    single = outputs.shape[1] == 1
    # Two classes are two outputs of opposite halves.
    scores = np.column_stack([-outputs / 2, outputs / 2]) if single else outputs
    wanted = np.column_stack([signs < 0, signs > 0]).astype(float) if single else (signs > 0).astype(float)
    classes, share = scores.shape[1], counts / counts.sum()
    # The first shift is zero: only differences count.
    basis = np.concatenate(
        [scores[:, :, None], np.broadcast_to(np.eye(classes)[:, 1:], (*scores.shape, classes - 1))], axis=2
    )
    weight = np.full(classes, PENALTY / counts.sum())
    weight[0] *= float(np.mean(share @ (scores - share @ scores) ** 2)) or 1.0
    place = np.zeros(classes)
    place[0] = 1.0

    def loss(at: Array) -> float:
        logits = basis @ at
        top = logits.max(axis=1)
        spread = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
        return float(share @ (spread - (wanted * logits).sum(axis=1)) + weight @ at**2 / 2)

    for _ in range(ROUNDS):
        p = softmax(basis @ place, axis=1)
        slope = np.einsum("n,nk,nka->a", share, p - wanted, basis, optimize=True) + weight * place
        mean = np.einsum("nk,nka->na", p, basis)
        bend = np.einsum("n,nk,nka,nkb->ab", share, p, basis, basis, optimize=True)
        bend += np.diag(weight) - (mean * share[:, None]).T @ mean
        step = np.linalg.solve(bend, slope)
        size, now = 1.0, loss(place)
        while size > 1e-6 and loss(place - size * step) > now - 1e-4 * size * float(slope @ step) + 1e-15:
            size /= 2
        place = place - size * step
        if float(slope @ step) < 1e-26:
            break
    # Outputs that are worse than nothing get no say, but keep their order.
    sharpness = max(float(place[0]), 1e-3)
    shifts = np.append(0.0, place[1:])
    return sharpness, (shifts[1:] if single else shifts) / sharpness
