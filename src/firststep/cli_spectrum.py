"""The command `spectrum`: options and output; the command line wires them together."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firststep.figures import Figure
    from firststep.problem import Problem, Sizes, Spectrum

# Written here as well, so that --help need not import NumPy; a test compares it with the library's own.
KINDS = ("features", "weights")
STEP_EXPONENT = 0.3
EXAMPLES = (
    "firststep spectrum --step-exponent 0.4 --simulate 4 --plot spectrum.svg",
    "firststep spectrum --of weights --activation tanh --step-size 5 --json",
    "firststep spectrum --step-exponent 0.05:0.45:17 --plot ladder.png",
)
# Overlaps below this are not worth a column.
FAINT = 0.02
# A predicted density that moves by more than this share of its maximum under refinement gets a remark.
ROUGH = 0.003


def described(predicted: "Spectrum", simulated: "Spectrum | None") -> dict[str, Any]:
    """One step size as a JSON-able object: bulk, edges, outliers, and the simulated side if there is one."""
    content = predicted.to_dict()
    content["simulated"] = None
    if simulated is not None:
        drawn = simulated.to_dict()
        outliers = drawn["outliers"]
        for outlier, errors in zip(outliers, simulated.details["stderr"], strict=True):
            outlier["stderr"] = errors
        content["simulated"] = {
            "replicas": simulated.details["replicas"],
            "seed": simulated.details["seed"],
            "bulk": drawn["bulk"],
            "edges": drawn["edges"],
            "atom": drawn["atom"],
            "counts": simulated.details["counts"],
            "outliers": outliers,
        }
    return dict(_finite(content))


def _finite(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def table(predicted: "Spectrum", simulated: "Spectrum | None") -> str:
    """Bulk and outliers as lines of text."""
    lines = [f"bulk      {predicted.edges[0]:.5g} … {predicted.edges[1]:.5g}"]
    if len(predicted.intervals) > 1:
        pieces = ", ".join(f"{low:.4g} … {high:.4g}" for low, high in predicted.intervals)
        lines.append(f"in pieces {pieces}")
    if predicted.atom:
        lines.append(f"zero      {predicted.atom:.4g} of the eigenvalues")
    if not predicted.outliers:
        lines.append("outliers  none predicted")
    for index, outlier in enumerate(predicted.outliers):
        lines.append(
            f"outlier   {outlier.eigenvalue:.5g} ({outlier.over_edge:.3g} x edge), singular value "
            f"{outlier.singular_value:.4g}; overlaps {_overlaps(outlier.overlaps)}"
        )
        if simulated is not None and len(simulated.outliers) > index:
            lines.append(_drawn(simulated, index))
    if simulated is not None:
        further = range(len(predicted.outliers), len(simulated.outliers))
        lines.extend(_drawn(simulated, index) for index in further)
        if not simulated.outliers:
            lines.append(f"simulated no outliers in the median of {simulated.details['replicas']} draws")
    return "\n".join(lines)


def _drawn(simulated: "Spectrum", index: int) -> str:
    outlier, error = simulated.outliers[index], simulated.details["stderr"][index]["eigenvalue"]
    spread = "" if math.isnan(error) else f" ± {error:.2g}"
    return f"simulated {outlier.eigenvalue:.5g}{spread}; overlaps {_overlaps(outlier.overlaps)}"


def _overlaps(overlaps: Mapping[str, float]) -> str:
    shown = [f"{name} {value:.3f}" for name, value in overlaps.items() if value > FAINT]
    return ", ".join(shown) or "all below 0.02"


def run(
    problem: "Problem",
    sizes: "Sizes",
    step_sizes: Sequence[float],
    *,
    of: str,
    points: int,
    simulate: int | None,
    seed: int,
    as_json: bool,
    plot: str | None,
    say: Callable[[str], None],
    tell: Callable[[str], None],
) -> None:
    """Predict, simulate if asked to, print, and draw."""
    from firststep.theory.spectrum import predict_spectrum

    for concern in problem.concerns(sizes):
        tell(concern)
    steps = [float(step) for step in step_sizes]
    predicted = [predict_spectrum(problem, sizes, step, of=of, points=points) for step in steps]
    for spectrum in predicted:
        accuracy = spectrum.details["accuracy"]
        if accuracy > ROUGH:
            tell(
                f"the density at step size {spectrum.step_size:.4g} is stable to {accuracy:.1g} of its maximum only: "
                "its bulk falls into bands that the quadrature does not resolve; outliers are not affected"
            )
    simulated: Sequence[Spectrum | None] = [None] * len(steps)
    if simulate is not None:
        from firststep.spectra import simulate_spectrum

        simulated = simulate_spectrum(problem, sizes, steps, of=of, replicas=simulate, seed=seed)
    pairs = list(zip(predicted, simulated, strict=True))
    if as_json:
        spectra = [described(*pair) for pair in pairs]
        say(json.dumps(spectra[0] if len(spectra) == 1 else {"spectra": spectra}, indent=2, allow_nan=False))
    else:
        from firststep.spectrum_figures import step_text

        name = "F F^T/n" if of == "features" else "W W^T"
        for pair in pairs:
            say(f"eigenvalues of {name}, {step_text(pair[0])}\n{table(*pair)}")
    if plot:
        from firststep import figures

        tell(f"figure written to {figures.save(_figure(predicted, simulated), plot)}")


def _figure(predicted: Sequence["Spectrum"], simulated: Sequence["Spectrum | None"]) -> "Figure":
    """A histogram for up to three step sizes, the ladder of spikes for more."""
    from firststep import spectrum_figures

    drawn = [spectrum for spectrum in simulated if spectrum is not None]
    if len(predicted) <= 3:
        return spectrum_figures.histogram(predicted, drawn)
    return spectrum_figures.ladder(
        [s for s in predicted if s.step_size > 0], [s for s in drawn if s.step_size > 0]
    )
