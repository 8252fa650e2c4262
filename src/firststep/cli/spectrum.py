"""The command `spectrum`: options and output; the command line wires them together."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firststep.cli.options import Output
from firststep.cli.output import waiting

if TYPE_CHECKING:
    from firststep.figures import Figure
    from firststep.gaussian import Array
    from firststep.results import Spectrum
    from firststep.setting import Problem, Sizes

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
    if predicted.details.get("next_step_sizes"):
        content["next_step_sizes"] = predicted.details["next_step_sizes"]
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


@dataclass(frozen=True)
class Wanted:
    """Which spectra are asked for, and whether networks are to be drawn."""

    problem: "Problem"
    sizes: "Sizes"
    schedule: "Array"
    of: str
    points: int
    replicas: int | None
    seed: int

    def predicted(self) -> list["Spectrum"]:
        """The theory's spectrum of each sequence of steps."""
        from firststep.theory.spectra.spectrum import predict_spectrum

        return [
            predict_spectrum(self.problem, self.sizes, first, of=self.of, points=self.points, **_later(later))
            for first, *later in self.schedule.tolist()
        ]

    def simulated(self) -> list["Spectrum | None"]:
        """The drawn networks' spectra, or nothing."""
        if self.replicas is None:
            return [None] * len(self.schedule)
        from firststep.simulate.spectra import simulate_spectrum

        # First steps that the same later ones follow are taken on the same draws.
        rows: dict[tuple[float, ...], list[int]] = {}
        for row, (_, *later) in enumerate(self.schedule.tolist()):
            rows.setdefault(tuple(later), []).append(row)
        found: dict[int, Spectrum | None] = {}
        for later, places in rows.items():
            firsts = self.schedule[places, 0].tolist()
            spectra = simulate_spectrum(
                self.problem,
                self.sizes,
                firsts,
                of=self.of,
                replicas=self.replicas,
                seed=self.seed,
                **_later(later),
            )
            found |= dict(zip(places, spectra, strict=True))
        return [found[row] for row in range(len(self.schedule))]


def _later(steps: Sequence[float]) -> dict[str, Any]:
    """The argument for the steps after the first, where there are some."""
    return {"next_step_sizes": list(steps)} if steps else {}


def run(wanted: Wanted, output: Output, say: Callable[[str], None], tell: Callable[[str], None]) -> None:
    """Predict, simulate if asked to, print, and draw."""
    for concern in wanted.problem.concerns(wanted.sizes):
        tell(concern)
    count = f"{len(wanted.schedule)} spectra" if len(wanted.schedule) > 1 else "a spectrum"
    with waiting(f"{count} from the theory", output.quiet):
        predicted = wanted.predicted()
    for spectrum in predicted:
        for note in spectrum.details["notes"]:
            tell(note)
        accuracy = spectrum.details["accuracy"]
        if accuracy > ROUGH:
            tell(
                f"the density at step size {spectrum.step_size:.4g} is stable to {accuracy:.1g} of its maximum only: "
                "its bulk falls into bands that the quadrature does not resolve; outliers are not affected"
            )
    with waiting(f"{count} of {wanted.replicas} drawn networks", output.quiet):
        simulated = wanted.simulated()
    pairs = list(zip(predicted, simulated, strict=True))
    if output.as_json:
        spectra = [described(*pair) for pair in pairs]
        say(json.dumps(spectra[0] if len(spectra) == 1 else {"spectra": spectra}, indent=2, allow_nan=False))
    else:
        from firststep.figures.spectra import step_text

        name = "F F^T/n" if wanted.of == "features" else "W W^T"
        for pair in pairs:
            say(f"eigenvalues of {name}, {step_text(pair[0])}\n{table(*pair)}")
    if output.plot:
        from firststep import figures

        tell(f"figure written to {figures.save(_figure(predicted, simulated), output.plot)}")


def _figure(predicted: Sequence["Spectrum"], simulated: Sequence["Spectrum | None"]) -> "Figure":
    """A histogram for up to three step sizes, the ladder of spikes for more."""
    from firststep.figures import spectra as spectrum_figures

    drawn = [spectrum for spectrum in simulated if spectrum is not None]
    if len(predicted) <= 3:
        return spectrum_figures.histogram(predicted, drawn)
    return spectrum_figures.ladder(
        [s for s in predicted if s.step_size > 0], [s for s in drawn if s.step_size > 0]
    )
