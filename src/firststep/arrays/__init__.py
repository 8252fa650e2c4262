"""The network on given arrays: features, gradient step, ridge path, exact test error. Nothing random here.

Every function takes NumPy arrays, on a fast path of their own, or arrays of another library with an array API, such as
PyTorch tensors on any device: matrix products and whatever else grows with a product of two sizes are then computed
there. Fitted coefficients and errors are NumPy's in any case.
"""

from firststep.arrays.checks import check_squarable, dominant_row
from firststep.arrays.library import Library, Matrix, host, joined, like, losses
from firststep.arrays.population import (
    Neurons,
    NoPopulationError,
    WeightProducts,
    captured,
    linear_test_error,
    population_test_error,
)
from firststep.arrays.ridge import Moments, RidgePath, ridge_path, shifted_solve
from firststep.arrays.spikes import (
    OneStep,
    SpikedModel,
    gaussian_equivalent,
    spike_coefficients,
    spiked_network,
    top_directions,
    top_singular,
)
from firststep.arrays.step import (
    Step,
    features,
    features_after,
    gradient_rule,
    gradient_step,
    muon_rule,
    sign_rule,
    whitened_rule,
)

__all__ = [
    "Library",
    "Matrix",
    "Moments",
    "Neurons",
    "NoPopulationError",
    "OneStep",
    "RidgePath",
    "SpikedModel",
    "Step",
    "WeightProducts",
    "captured",
    "check_squarable",
    "dominant_row",
    "features",
    "features_after",
    "gaussian_equivalent",
    "gradient_rule",
    "gradient_step",
    "host",
    "joined",
    "like",
    "linear_test_error",
    "losses",
    "muon_rule",
    "population_test_error",
    "ridge_path",
    "shifted_solve",
    "sign_rule",
    "spike_coefficients",
    "spiked_network",
    "top_directions",
    "top_singular",
    "whitened_rule",
]
