"""Quantities, axes and matrices in words and symbols, as figures name them."""

# Quantities of an outcome.
WORDS = {
    "train_error": "train error",
    "test_error": "test error",
    "train_gain": "gain in train error",
    "test_gain": "gain in test error",
    "risk": "test error without the noise",
    "train_mse": "train error without the penalty",
    "readout_norm_squared": "squared norm of the readout",
    "degrees_of_freedom": "degrees of freedom / n",
    "weights_top": "largest singular value of W₁",
    "weights_alignment": "squared overlap with β",
    "learned_t1": "learned share of the linear part",
    "learned_h2t1": "learned share of the quadratic part",
}
# What is swept, as a symbol and along an axis.
SYMBOLS = {
    "step_size": "η",
    "step_exponent": "α",
    "next_step_size": "η₂",
    "next_step_exponent": "α₂",
    "ridge": "λ",
    "ridge_cui": "λ_C",
    "n_samples": "n",
    "dim": "d",
    "width": "N",
    "n_step_samples": "n₀",
    "phi": "d/n",
    "psi": "d/N",
    "psi1": "n/d",
    "psi2": "N/d",
    "samples_per_width": "n/N",
    "step_samples_per_dim": "n₀/d",
}
AXES = {
    "step_size": "step size η",
    "step_exponent": "step exponent α = log η / log n₀",
    "next_step_size": "size η₂ of the second step",
    "next_step_exponent": "exponent α₂ of the second step",
    "ridge": "ridge λ",
    "n_samples": "samples n",
    "width": "width N",
    "psi1": "samples per dimension n/d",
    "psi2": "width per dimension N/d",
    "samples_per_width": "samples per neuron n/N",
}
# Matrices whose singular values are shown.
MATRICES = {"features": "F/√n", "weights": "W₁", "gradient": "G"} | {
    f"spiked{k}": f"F{sub}/√n" for k, sub in enumerate("₀₁₂₃")
}
# Whose singular vectors the overlaps are mostly about.
SIDES = {"features": "left vectors", "weights": "input-side vectors"}
# What an overlap is with, for people.
OVERLAPS = {
    "h0": "constant",
    "h1": "z",
    "h2": "H₂(z)",
    "h3": "H₃(z)",
    "h4": "H₄(z)",
    "z2": "z²",
    "z3": "z³",
    "beta": "β·x",
    "direction": "direction",
    "a1": "a",
    "a2": "a²",
    "a3": "a³",
}
