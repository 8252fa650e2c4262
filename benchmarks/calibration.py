"""How far the unified theory is from simulation: problems drawn at random from a seed, many draws of each, one page.

    ./run python benchmarks/calibration.py simulate --kind single --seed 3 --problems 100
    ./run python benchmarks/calibration.py follow --kind single --seed 3
    ./run python benchmarks/calibration.py report
    ./run python benchmarks/calibration.py order --kind degrees --seed 6

The first draws, and resumes where it was stopped; the second follows what is beyond 4 standard errors to half and to
twice the size; the third writes the numbers and the figure of docs/calibration.md; the fourth prints what the next
order in 1/n, and the joint law of a covariance and the step, change.

Kinds: `single`, one step at proportional sizes; `degrees`, any ratio of samples, neurons and dimension; `covariance`,
inputs with a random spectrum; `steps`, two steps and teachers of several directions. A seed whose problems were used to
improve the theory is named in DEVELOPMENT, and the page tells it apart from those that were looked at once.
"""

import argparse
import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from calibration_draws import FEWEST, Draw, free_of, mean_of, read, simulate
from calibration_problems import KINDS, Case, case

from firststep import predict
from firststep.numerics.agreement import normal_distances
from firststep.setting import OutsideTheoryWarning

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "calibration"
SUMMARY = HERE / "results" / "calibration.json"
PAGE = HERE.parent / "docs" / "calibration.md"
FIGURE = HERE.parent / "docs" / "images" / "calibration.svg"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

# Kinds and seeds whose problems were looked at while the theory was made.
DEVELOPMENT = {(kind, 1) for kind in KINDS} | {
    ("degrees", 2),
    ("degrees", 3),
    ("degrees", 4),
    ("degrees", 5),
    ("single", 2),
    ("single", 3),
    ("single", 4),
    ("covariance", 2),
    ("covariance", 3),
    ("covariance", 4),
    ("covariance", 5),
    ("covariance", 6),
    ("covariance", 7),
    ("steps", 2),
    ("steps", 3),
}
SIZES = {"half": 0.5, "twice": 2.0}
# Standard errors beyond which a problem is followed, and draws that a followed size needs at least.
FOLLOWED, FEWEST_FOLLOWED = 4.0, 12
# Difference of chi^2 below which two explanations are not told apart.
UNCLEAR = 4.0
ERRORS = ("test_error", "train_error")
# Relative standard error of the test error above which a problem tells nothing, whatever the theory says.
LARGEST_STDERR = 0.01

Row = dict[str, Any]


def draws_path(kind: str, seed: int, size: str = "") -> Path:
    """Where the draws of a kind and seed are stored."""
    return RESULTS / f"{kind}-{seed}{f'-{size}' if size else ''}.jsonl"


def predicted(case: Case, **options: Any) -> dict[str, float] | str:
    """The theory's numbers, or its words where it refuses."""
    later = {"next_step_exponents": [list(case.later)]} if case.later else {}
    try:
        with warnings.catch_warnings():
            # Far ratios and directions that a step does not see are what is asked for here.
            warnings.simplefilter("ignore", OutsideTheoryWarning)
            found = predict(
                case.problem,
                case.sizes,
                step_exponents=case.step_exponent,
                ridges=case.ridge,
                **later,
                **options,
            )
    except (TypeError, ValueError, NotImplementedError) as error:
        return str(error)
    shape = (len(found.step_sizes), len(found.ridges))
    return {name: float(np.broadcast_to(value, shape)[0, 0]) for name, value in found.values.items()}


def compared(kind: str, seed: int, size: str = "", **options: Any) -> list[Row]:
    """Theory beside simulation, one row for each problem with enough draws."""
    fewest = FEWEST_FOLLOWED if size else FEWEST
    return [
        _row(kind, seed, now, draws, **options)
        for _, (now, draws) in sorted(read(draws_path(kind, seed, size)).items())
        if len(draws) >= fewest and (size or not _scattered(draws))
    ]


def _scattered(draws: list[Draw]) -> bool:
    """Whether the draws differ too much to tell anything."""
    mean, error = mean_of(draws, "test_error")
    return error > LARGEST_STDERR * mean


def _row(kind: str, seed: int, now: Case, draws: list[Draw], **options: Any) -> Row:
    theory = predicted(now, **options)
    row: Row = {"kind": kind, "seed": seed, **now.to_dict(), "draws": len(draws)}
    for name in ERRORS:
        mean, error = mean_of(draws, name)
        row |= {name: mean, f"{name}_stderr": error}
        if isinstance(theory, str):
            row["refused"] = theory
            continue
        value, bar = theory[name], theory.get(f"{name}_bar", 0.0)
        distance = normal_distances(np.array((value - mean) / error), free_of(draws))
        row |= {
            f"{name}_theory": value,
            f"{name}_bar": bar,
            f"{name}_difference": value / mean - 1,
            f"{name}_distance": float(distance),
            f"{name}_inside": bool(abs(value - mean) <= bar + 2 * error),
        }
    return row


def summary(rows: Sequence[Row], name: str = "test_error") -> dict[str, Any]:
    """Distribution of relative differences and distances, and what the theory's error bar covers."""
    rows = [row for row in rows if "refused" not in row]
    if not rows:
        return {"problems": 0}
    differences = np.array([row[f"{name}_difference"] for row in rows])
    errors = np.array([row[f"{name}_stderr"] / row[name] for row in rows])
    distances = np.abs([row[f"{name}_distance"] for row in rows])
    bars = np.array([row[f"{name}_bar"] / row[name] for row in rows])
    sizes = np.abs(differences)
    return {
        "problems": len(rows),
        "median": float(np.median(sizes)),
        "share_95": float(np.quantile(sizes, 0.95)),
        "largest": float(sizes.max()),
        "mean": float(differences.mean()),
        "median_stderr": float(np.median(errors)),
        "largest_stderr": float(errors.max()),
        "median_distance": float(np.median(distances)),
        "beyond_4": float(np.mean(distances > FOLLOWED)),
        # What is left when the simulation's own scatter is taken out, in quadrature.
        "root_mean_square_without_noise": float(math.sqrt(max(0.0, np.mean(differences**2 - errors**2)))),
        "inside_bar": float(np.mean([row[f"{name}_inside"] for row in rows])) if bars.any() else None,
        "median_bar": float(np.median(bars)) if bars.any() else None,
    }


def classified(rows: dict[str, Row]) -> str:
    """Whether a difference shrinks with the size or stays, from what was found at up to three sizes.

    A constant is held against c/f and c/sqrt(f), f being the size as a multiple of the problem's own.
    """
    factors = {"": 1.0} | SIZES
    known = [(factors[size], row) for size, row in rows.items() if "refused" not in row]
    if len(known) < 2:
        return "not followed"
    f = np.array([factor for factor, _ in known])
    y = np.array([row["test_error_difference"] for _, row in known])
    weight = np.array([(row["test_error"] / row["test_error_stderr"]) ** 2 for _, row in known])

    def misfit(shape: Any) -> float:
        level = (weight * shape * y).sum() / (weight * shape**2).sum()
        return float((weight * (y - level * shape) ** 2).sum())

    stays, shrinks = misfit(np.ones_like(f)), min(misfit(1 / f), misfit(f**-0.5))
    if abs(stays - shrinks) < UNCLEAR:
        return "unclear"
    return "shrinks" if shrinks < stays else "stays"


def follow(kind: str, seed: int) -> None:
    """Simulate the problems that are too far off at half and at twice the size."""
    far = [
        case(kind, seed, row["index"])
        for row in compared(kind, seed)
        if abs(row.get("test_error_distance", 0.0)) > FOLLOWED
    ]
    print(f"{kind} {seed}: {len(far)} problems are more than {FOLLOWED:g} standard errors away")
    for size, factor in SIZES.items():
        scaled = [one.scaled(factor) for one in far]
        simulate(kind, seed, scaled, draws_path(kind, seed, size))


def followed(kind: str, seed: int, rows: Sequence[Row]) -> list[Row]:
    """The problems that are too far off, at every size that was simulated, with the verdict."""
    others = {size: {row["index"]: row for row in compared(kind, seed, size)} for size in SIZES}
    found = []
    for row in rows:
        if abs(row.get("test_error_distance", 0.0)) > FOLLOWED:
            sizes = {"": row} | {size: of[row["index"]] for size, of in others.items() if row["index"] in of}
            found.append({"row": row, "sizes": sizes, "verdict": classified(sizes)})
    return found


def order(kind: str, seed: int) -> None:
    """Print how far problems are from simulation by the leading order alone and as predictions have it."""
    for theory in ("leading_order", "unified"):
        for group, rows in _groups(kind, compared(kind, seed, theory=theory)).items():
            for name in ERRORS if rows else ():
                found = summary(rows, name)
                print(
                    f"{kind} {seed}{group}, {name.replace('_', ' ')}, {theory}: "
                    f"{found['problems']} problems, median {found['median']:.2%}, "
                    f"95 % below {found['share_95']:.2%}, largest {found['largest']:.2%}, "
                    f"root mean square without the simulation's scatter "
                    f"{found['root_mean_square_without_noise']:.2%}, "
                    f"beyond 4 standard errors {found['beyond_4']:.0%}, inside the bar {found['inside_bar']:.0%}"
                )


def report(seeds: Sequence[int] | None = None) -> None:
    """Compare all draws there are, or those of some seeds, and write the page's numbers and figure."""
    sets: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*.jsonl")):
        kind, seed, *size = path.stem.split("-")
        if size or (seeds is not None and int(seed) not in seeds):
            continue
        rows = compared(kind, int(seed))
        drawn = [draws for _, draws in read(path).values() if len(draws) >= FEWEST]
        sets[kind, int(seed)] = {
            "rows": rows,
            "followed": followed(kind, int(seed), rows),
            "scattered": sum(map(_scattered, drawn)),
        }
    content = {
        f"{kind}-{seed}": {
            "development": (kind, seed) in DEVELOPMENT,
            **{name: summary(entry["rows"], name) for name in ERRORS},
            "scattered": entry["scattered"],
            "refused": sum("refused" in row for row in entry["rows"]),
            "followed": [{"index": f["row"]["index"], "verdict": f["verdict"]} for f in entry["followed"]],
            "rows": entry["rows"],
        }
        for (kind, seed), entry in sets.items()
    }
    SUMMARY.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{measured(sets)}\n\n{END}{after}", encoding="utf-8")
    _draw([row for entry in sets.values() for row in entry["rows"] if "refused" not in row])
    print(measured(sets))


LINES: tuple[tuple[str, str, Callable[[dict[str, Any]], str]], ...] = (
    ("problems", "problems", lambda s: str(s["problems"])),
    ("median relative difference", "median", lambda s: _percent(s["median"])),
    ("95 % of the problems below", "share_95", lambda s: _percent(s["share_95"])),
    ("largest", "largest", lambda s: _percent(s["largest"])),
    ("mean, with sign", "mean", lambda s: _percent(s["mean"])),
    (
        "root mean square, simulation's scatter taken out",
        "root_mean_square_without_noise",
        lambda s: _percent(s["root_mean_square_without_noise"]),
    ),
    ("median standard error of the simulation", "median_stderr", lambda s: _percent(s["median_stderr"])),
    ("more than 4 standard errors away", "beyond_4", lambda s: f"{100 * s['beyond_4']:.0f} %"),
    (
        "inside the theory's bar + 2 standard errors",
        "inside_bar",
        lambda s: "–" if s["inside_bar"] is None else f"{100 * s['inside_bar']:.0f} %",
    ),
    (
        "median bar over median difference",
        "median_bar",
        lambda s: "–" if s["median_bar"] is None else f"{s['median_bar'] / s['median']:.1f}",
    ),
)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def measured(sets: dict[tuple[str, int], dict[str, Any]]) -> str:
    """The tables of the page: seeds that were looked at once, then those that helped to make the theory."""
    parts = []
    for development, heading in ((False, "Untouched seeds"), (True, "Seeds used to improve the theory")):
        own = {key: entry for key, entry in sets.items() if (key in DEVELOPMENT) == development}
        body = "\n\n".join(filter(None, (_tables(own), _followed_table(own))))
        parts.append(f"## {heading}\n\n{body or 'None was compared yet.'}")
    return "\n\n".join(parts)


def _groups(kind: str, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows as a whole and, where dimensions differ much, by dimension."""
    groups = {"": list(rows)}
    if kind in ("degrees", "covariance"):
        groups |= {f", d ≥ {least}": [r for r in rows if r["sizes"]["dim"] >= least] for least in (30, 300)}
    return groups


def _tables(sets: dict[tuple[str, int], dict[str, Any]]) -> str:
    columns: dict[str, dict[str, Any]] = {}
    remarks = []
    for (kind, seed), entry in sets.items():
        for name, rows in _groups(kind, entry["rows"]).items():
            found = summary(rows)
            if found["problems"]:
                columns[f"{kind}, seed {seed}{name}"] = found
        if entry["scattered"]:
            remarks.append(
                f"* {kind}, seed {seed}: not counted because their standard error stayed above "
                f"{100 * LARGEST_STDERR:g} %: {entry['scattered']}"
            )
        words = [row["refused"] for row in entry["rows"] if "refused" in row]
        if words:
            remarks.append(f"* {kind}, seed {seed}: {len(words)} problems have no prediction ({words[0]})")
    lines = []
    if columns:
        lines += [f"| test error | {' | '.join(columns)} |", "| --- |" + " --: |" * len(columns)]
        lines += [f"| {text} | {' | '.join(map(show, columns.values()))} |" for text, _, show in LINES]
    return "\n".join([*lines, *(["", *remarks] if remarks else [])])


def _followed_table(sets: dict[tuple[str, int], dict[str, Any]]) -> str:
    found = [one for entry in sets.values() for one in entry["followed"]]
    if not found:
        return ""
    lines = [
        "Beyond 4 standard errors, at the same ratios and the same $\\eta/\\sqrt N$:",
        "",
        "| problem | half the size | as drawn | twice the size | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in found:
        cells = [_difference(one["sizes"].get(size)) for size in ("half", "", "twice")]
        lines.append(f"| {_described(one['row'])} | {' | '.join(cells)} | {one['verdict']} |")
    return "\n".join(lines)


def _difference(row: Row | None) -> str:
    if row is None or "refused" in row:
        return "–"
    error = 100 * row["test_error_stderr"] / row["test_error"]
    return f"{100 * row['test_error_difference']:+.2f} % ± {error:.2f}"


def _described(row: Row) -> str:
    problem, sizes = row["problem"], row["sizes"]
    parts = [
        f"{row['kind']} {row['seed']}:{row['index']}",
        f"`{problem['activation']}`",
        f"`{problem['teacher']}`",
        *(f"`{problem[name]}`" for name in ("inputs", "alignment") if name in problem),
        f"noise {problem['noise_std']:g}",
        *(problem[name].replace("_", " ") for name in ("rows", "readout", "initial_output")),
        f"n {sizes['n_samples']}, d {sizes['dim']}, N {sizes['width']}, n₀ {sizes['n_step_samples']}",
        f"α {', '.join(f'{a:.2f}' for a in (row['step_exponent'], *row.get('later', ())))}",
        f"λ {row['ridge']:.2g}",
    ]
    # A bar would end the cell of the table.
    return ", ".join(parts).replace("|", "\\|")


def _draw(rows: Sequence[Row]) -> None:
    if not rows:
        return
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "firststep"
    import matplotlib.pyplot as plt

    colours = dict(zip(KINDS, ("#0072B2", "#D55E00", "#009E73", "#CC79A7"), strict=True))
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for development, marker in ((False, "o"), (True, "x")):
        for kind, colour in colours.items():
            own = [r for r in rows if r["kind"] == kind and ((kind, r["seed"]) in DEVELOPMENT) == development]
            if not own:
                continue
            label = f"{kind}{', used' if development else ''} ({len(own)})"
            left.errorbar(
                [row["step_exponent"] for row in own],
                [100 * row["test_error_difference"] for row in own],
                [100 * row["test_error_stderr"] / row["test_error"] for row in own],
                fmt=marker, ms=3.5, lw=0.8, color=colour, label=label,
            )  # fmt: skip
            share = (np.arange(len(own)) + 0.5) / len(own)
            style = {"color": colour, "ls": ":" if development else "-", "label": label}
            middle.step(np.sort([100 * abs(row["test_error_difference"]) for row in own]), share, **style)
            right.step(np.sort([abs(row["test_error_distance"]) for row in own]), share, **style)
    left.axhline(0, color="0.3", lw=0.8)
    left.set(xlabel="step exponent α", ylabel="theory / simulation − 1, test error (%)")
    left.set_yscale("symlog", linthresh=2)
    middle.set(xlabel="relative difference (%)", ylabel="share of the problems", ylim=(0, 1), xscale="log")
    grid = np.linspace(0, 8, 200)
    right.plot(grid, [math.erf(x / math.sqrt(2)) for x in grid], color="0.3", lw=1, label="chance alone")
    right.set(xlabel="distance in standard errors", ylim=(0, 1), xlim=(0, 8))
    right.legend(frameon=False, fontsize=7, loc="lower right")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("simulate", "follow", "order"):
        command = commands.add_parser(name)
        command.add_argument("--kind", choices=KINDS, default="single")
        command.add_argument("--seed", type=int, required=True, help="of the list of problems")
        if name == "simulate":
            command.add_argument("--problems", type=int, default=100, help="how many (default: 100)")
            command.add_argument(
                "--predicted", action="store_true", help="leave out those that the theory refuses in words"
            )
            command.add_argument(
                "--least-dim",
                type=int,
                default=0,
                help="leave out those of a lower dimension (default: none)",
            )
    telling = commands.add_parser("report")
    telling.add_argument("--seed", type=int, action="append", help="only this one; may be repeated")
    arguments = parser.parse_args()
    if arguments.command == "simulate":
        kind, seed = arguments.kind, arguments.seed
        cases = [case(kind, seed, index) for index in range(arguments.problems)]
        cases = [each for each in cases if each.sizes.dim >= arguments.least_dim]
        if arguments.predicted:
            cases = [each for each in cases if not isinstance(predicted(each), str)]
        simulate(kind, seed, cases, draws_path(kind, seed))
    elif arguments.command == "follow":
        follow(arguments.kind, arguments.seed)
    elif arguments.command == "order":
        order(arguments.kind, arguments.seed)
    else:
        report(arguments.seed)


if __name__ == "__main__":
    main()
