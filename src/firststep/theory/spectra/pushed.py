r"""How far outliers of the features push each other because neurons and samples fluctuate [firststep, covariance].

The joint matrix is singular where :math:`PA` has the eigenvalue :math:`\kappa_r = 1`, with the neurons' side
:math:`P = Q^{-1}`, a mean over N neurons, and the samples' side :math:`A = -C^\top(R^{-1} + G)^{-1}C`, in which R is a
mean over n samples. In one network both are sums, and levels that come close do not cross.
"""

import math

import numpy as np

from firststep.gaussian import Array, gauss_hermite, hermite_polynomials
from firststep.theory.coefficients import Geometry, Tables, Values
from firststep.theory.equations import forms_at

# Strengths of directions, in units of what makes an outlier, that do not push one.
NO_PUSH = 1e-6
# Nodes of special directions beside the coordinates, and of what fluctuates.
BESIDE_NODES, NODES = 4, 40


def level_push(apart: Array, coupling: Array, wander: Array) -> Array:
    r"""Mean push of a level by others at the distance a below it (negative: above it).

    .. math:: \mathrm{sign}(a)\;E\Big[\sqrt{\tfrac{1}{4}(|a| + h)^2 + g^2} - \tfrac{1}{2}|a|\Big]

    for a coupling g and a fluctuation h of the distance, Gaussian with these variances: levels of two by two, ordered
    by size in every draw [firststep, covariance, eq. 20].

    Examples
    --------
    >>> push = level_push(np.array([1.0, -1.0, 0.0]), np.array([0.01, 0.01, 1.0]), np.zeros(3))
    >>> print(", ".join(f"{each:.4f}" for each in push))
    0.0097, -0.0097, 0.8062
    """
    nodes, weights = gauss_hermite(NODES)
    g, h = (np.sqrt(part)[:, None] * nodes for part in (coupling, wander))
    distance = np.abs(apart)[:, None] + h
    mean = np.sqrt(distance[:, :, None] ** 2 / 4 + g[:, None] ** 2) @ weights @ weights
    return np.asarray(np.copysign(mean - np.abs(apart) / 2, apart))


def strength_pushed(geometry: Geometry, tables: Tables, joint: Values, values: Values) -> tuple[float, Array]:
    r"""Mean shift of kappa_r by all others, and e_r, at the outlier with this joint matrix and solution.

    With :math:`PAe_k = \kappa_ke_k`, :math:`e_k^\top Qe_l = \delta_{kl}`, the neurons' functions
    :math:`\varphi_k = \psi^\top Qe_k` and the samples' :math:`F_k = h^\top(1 + GR)^{-1}Ce_k` the variances are

    .. math:: g^2 = \frac{\kappa_k}{N}\mathrm{Var}_u\Big[\frac{\varphi_r\varphi_k}{1 + \delta}\Big]
        + \frac{n}{N^2}\mathrm{Var}_z[F_rF_k\rho], \qquad
        h^2 = \frac{1}{N}\mathrm{Var}_u\Big[\frac{\varphi_r^2 - \kappa_k\varphi_k^2}{1 + \delta}\Big]
        + \frac{n}{N^2}\mathrm{Var}_z[(F_r^2 - F_k^2)\rho]

    at the distance :math:`1 - \kappa_k` [firststep, covariance, eq. 19].
    """
    from scipy.linalg import eigh

    neurons, nz, sizes = tables.psi.shape[1], len(geometry.z), geometry.sizes
    own, spikes = joint[:neurons, :neurons].real, tables.spikes[0]
    carried = np.linalg.solve(joint[neurons:, neurons:].real, spikes)
    seen = spikes.T @ carried
    kappa, vectors = eigh((seen + seen.T) / 2, (own + own.T) / 2)
    kept = kappa > NO_PUSH
    if kept.sum() < 2:
        return 0.0, vectors[:, -1]
    kappa, vectors = kappa[kept], vectors[:, kept]
    r = int(np.abs(kappa - 1).argmin())
    phi = (own @ vectors).T @ tables.psi[0]
    form = forms_at(geometry, tables, values[None]).form[0].real
    by_sample = _sample_functions(geometry, tables, -carried @ vectors, form)
    mass, rho = (1 / values[nz:]).real, np.tile(values[:nz].real, by_sample.shape[1] // nz)
    masses = np.tile(geometry.weights, by_sample.shape[1] // nz) * _beside(tables)[1].repeat(nz)
    share = sizes.n_samples / sizes.width**2
    coupling = kappa * _variance(phi[r] * phi * mass, geometry.u_weights) / sizes.width
    coupling += share * _variance(by_sample[r] * by_sample * rho, masses)
    wander = _variance((phi[r] ** 2 - kappa[:, None] * phi**2) * mass, geometry.u_weights) / sizes.width
    wander += share * _variance((by_sample[r] ** 2 - by_sample**2) * rho, masses)
    others = np.arange(len(kappa)) != r
    push = level_push(1 - kappa[others], coupling[others], wander[others])
    return float(push.sum()), vectors[:, r]


def _variance(values: Array, weights: Array) -> Array:
    return np.asarray((values**2) @ weights - (values @ weights) ** 2)


def _beside(tables: Tables) -> tuple[Array, Array]:
    """Products of Hermite polynomials of what lies beside the coordinates, (blocks, G), at its nodes, and weights."""
    nodes, weights = gauss_hermite(BESIDE_NODES)
    blocks = np.array(tables.blocks[: tables.norm_start])
    polynomials = hermite_polynomials(nodes, int(blocks.max(initial=0)) + 1, normalised=True)
    found, masses = np.ones((len(blocks), 1)), np.ones(1)
    for degrees in blocks.T:
        found = (found[:, :, None] * polynomials[degrees][:, None]).reshape(len(blocks), -1)
        masses = np.outer(masses, weights).ravel()
    return found, masses


def _sample_functions(geometry: Geometry, tables: Tables, carried: Array, form: Array) -> Array:
    """F of each vector, (k, G nz), at the nodes of what lies beside the coordinates and of those."""
    basis = tables.h.shape[1]
    blocks = carried.T.reshape(carried.shape[1], -1, basis)[:, : tables.norm_start]
    functions = np.linalg.solve(form, blocks.swapaxes(1, 2)).swapaxes(1, 2) @ tables.h[0]
    return np.asarray(np.einsum("kbz,bg->kgz", functions, _beside(tables)[0])).reshape(len(functions), -1)


def place_pushed(
    geometry: Geometry, tables: Tables, vector: Array, slope: float, joint: Values, values: Values
) -> float:
    r"""The same as a distance, with the null vector v, whose neurons' part v_1 goes along e_r.

    .. math:: \Delta x = \Delta\kappa_r\,\frac{v_1^\top Qv_1}{v^\top J'v}
    """
    shift, own = strength_pushed(geometry, tables, joint, values)
    neurons = len(own)
    size = float(vector[:neurons] @ joint[:neurons, :neurons].real @ vector[:neurons])
    found = shift * size / slope
    return found if math.isfinite(found) and slope > 0 else 0.0
