"""The network on given arrays: features, gradient step, ridge path, exact test error. Nothing random here.

Every function takes NumPy arrays, on a fast path of their own, or arrays of another library with an array API, such as
PyTorch tensors on any device: matrix products and whatever else grows with a product of two sizes are then computed
there. Fitted coefficients and errors are NumPy's in any case.
"""

from firststep.network.arrays import Library, Matrix, host, joined, like, losses
from firststep.network.population import (
    Neurons,
    NoPopulationError,
    WeightProducts,
    linear_test_error,
    population_test_error,
)
from firststep.network.ridge import Moments, RidgePath, ridge_path, shifted_solve
from firststep.network.spikes import (
    SpikedModel,
    gaussian_equivalent,
    spike_coefficients,
    spiked_network,
    top_singular,
)
from firststep.network.step import Step, features, features_after, gradient_step

__all__ = [
    "Library",
    "Matrix",
    "Moments",
    "Neurons",
    "NoPopulationError",
    "RidgePath",
    "SpikedModel",
    "Step",
    "WeightProducts",
    "features",
    "features_after",
    "gaussian_equivalent",
    "gradient_step",
    "host",
    "joined",
    "like",
    "linear_test_error",
    "losses",
    "population_test_error",
    "ridge_path",
    "shifted_solve",
    "spike_coefficients",
    "spiked_network",
    "top_singular",
]
