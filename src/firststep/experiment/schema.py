"""The experiment file: TOML in, checked sections out, every mistake reported at once."""

import difflib
import itertools
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from firststep import setting
from firststep.compare import COMPARED
from firststep.compute.files import read_text
from firststep.setting import FIELDS, stable_key
from firststep.setting.doors import check_names
from firststep.simulate import EXTRAS

try:
    from pydantic import (
        AfterValidator,
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Field,
        ValidationError,
        create_model,
        model_validator,
    )
except ImportError as missing:
    raise ImportError("experiments need pydantic: install firststep[experiments]") from missing

MOST_VALUES = 100_000
MOST_REPLICAS = 1_000_000

# What a swept number may be called, with its meaning; ratios are resolved to whole sizes in points.py.
SIZE_NAMES = {
    "n_samples": "n, samples of the ridge fit",
    "dim": "d, input dimension",
    "width": "N, neurons of the first layer",
    "n_step_samples": "n0, samples of the gradient step (n unless given)",
    "phi": "d/n [Moniri24]",
    "psi": "d/N [Moniri24]",
    "psi1": "n/d [Ba22]",
    "psi2": "N/d [Ba22]",
    "samples_per_width": "n/N [Cui24]",
    "step_samples_per_dim": "n0/d [Cui24]",
}
RATIOS = tuple(SIZE_NAMES)[4:]


class ExperimentError(ValueError):
    """An experiment file that cannot be run, with all its mistakes."""

    def __init__(self, origin: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"{origin}: {count} mistake{'s' if count > 1 else ''}"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


def _is_number(value: object) -> bool:
    # Compared before it is converted: a whole number of 400 digits is no float. NaN is in no interval.
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def read_numbers(value: Any) -> tuple[float, ...]:
    """Numbers from one number, a list, or a range {start, stop, count, log}, ends included.

    Examples
    --------
    >>> read_numbers({"start": 0, "stop": 0.5, "count": 3}), read_numbers([1, 2.5])
    ((0.0, 0.25, 0.5), (1.0, 2.5))
    """
    if _is_number(value):
        return (float(value),)
    if isinstance(value, list | tuple):
        if not value or not all(_is_number(entry) for entry in value):
            raise ValueError(f"must be a list of numbers, got {value!r}")
        return tuple(float(entry) for entry in value)
    if isinstance(value, Mapping):
        return _read_range(value)
    raise ValueError(f"must be a number, a list of numbers or {{start, stop, count}}, got {value!r}")


def _read_range(value: Mapping[str, Any]) -> tuple[float, ...]:
    unknown = sorted(value.keys() - {"start", "stop", "count", "log"})
    if unknown:
        raise ValueError(f"a range has start, stop, count and log; got {', '.join(unknown)}")
    missing = [name for name in ("start", "stop", "count") if name not in value]
    if missing:
        raise ValueError(f"a range needs start, stop and count; {', '.join(missing)} is missing")
    start, stop, count, log = value["start"], value["stop"], value["count"], value.get("log", False)
    if not (_is_number(start) and _is_number(stop)):
        raise ValueError(f"start and stop must be numbers, got {start!r} and {stop!r}")
    if not isinstance(count, int) or isinstance(count, bool) or not 2 <= count <= MOST_VALUES:
        raise ValueError(f"count must be a whole number from 2 to {MOST_VALUES}, got {count!r}")
    if not isinstance(log, bool):
        raise ValueError(f"log must be true or false, got {log!r}")
    if log and not (start > 0 and stop > 0):
        raise ValueError(f"a log range needs positive ends, got {start} and {stop}")
    places = [i / (count - 1) for i in range(1, count - 1)]
    if log:
        inner = [math.exp(math.log(start) * (1 - t) + math.log(stop) * t) for t in places]
    else:
        inner = [start + (stop - start) * t for t in places]
    # Fifteen digits, so that 0.1 is the same point in a range of 6 and of 11.
    return (float(start), *(float(f"{value:.15g}") for value in inner), float(stop))


def read_words(value: Any) -> tuple[str, ...]:
    """One text or a list of texts."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(entry, str) for entry in value):
        return tuple(value)
    raise ValueError(f"must be a text or a list of texts, got {value!r}")


def read_later(value: Any) -> tuple[Any, ...]:
    """Values of the steps after the first: numbers for a second step, or a list with numbers for each later one.

    ``{sequences = [[], [0.3], [0.3, 0.3]]}`` lists them: here no later step, one and two.

    Examples
    --------
    >>> read_later([0.1, 0.3]), read_later([[0.1, 0.3], 0.2])
    ((0.1, 0.3), ((0.1, 0.2), (0.3, 0.2)))
    >>> read_later({"sequences": [[], [0.3]]})
    ((), (0.3,))
    """
    if isinstance(value, Mapping) and "sequences" in value:
        return _read_sequences(value)
    if isinstance(value, list | tuple) and any(isinstance(entry, list | tuple | Mapping) for entry in value):
        lists = [read_numbers(entry) for entry in value]
        return lists[0] if len(lists) == 1 else tuple(itertools.product(*lists))
    return read_numbers(value)


def _read_sequences(value: Mapping[str, Any]) -> tuple[tuple[float, ...], ...]:
    listed, others = value["sequences"], sorted(value.keys() - {"sequences"})
    if others:
        raise ValueError(f"sequences stand alone, without {', '.join(others)}")
    if not isinstance(listed, list | tuple) or not listed or not all(isinstance(e, list) for e in listed):
        raise ValueError(f"sequences must be a list of lists, as in [[], [0.3], [0.3, 0.3]], got {listed!r}")
    return tuple(read_numbers(entry) if entry else () for entry in listed)


# Offsets that make averages sharper are no quantity of the network, and no part of the store.
STORED_EXTRAS = tuple(name for name in EXTRAS if name not in ("controls", "double"))


def _known_extra(value: str) -> str:
    if value in EXTRAS and value not in STORED_EXTRAS:
        raise ValueError(
            f"{value!r} sharpens the averages of simulate and is not stored: leave it out, or raise replicas; "
            f"an experiment may have {', '.join(STORED_EXTRAS)}"
        )
    if value not in EXTRAS:
        raise ValueError(f"must be one of {', '.join(STORED_EXTRAS)}; got {value!r}")
    return value


def flat(values: Iterable[Any]) -> list[float]:
    """Numbers, of which some may stand in tuples."""
    return [number for value in values for number in (value if isinstance(value, tuple) else (value,))]


def _groups(value: Any) -> tuple[tuple[str, ...], ...]:
    if isinstance(value, list | tuple) and all(isinstance(group, list | tuple) for group in value):
        return tuple(read_words(group) for group in value)
    raise ValueError(f'must be a list of lists of names, as in [["n_samples", "ridge"]], got {value!r}')


def _whole(value: Any) -> Any:
    """A whole number, also one written 1e6."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Numbers = Annotated[tuple[float, ...], BeforeValidator(read_numbers)]
Groups = Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_groups)]
Words = Annotated[tuple[str, ...], BeforeValidator(read_words)]
Whole = Annotated[int, BeforeValidator(_whole)]
Later = Annotated[tuple[Any, ...], BeforeValidator(read_later)]
Extra = Annotated[str, AfterValidator(_known_extra)]
FigureKind = Literal[
    "against_step",
    "against",
    "map",
    "weights",
    "universality",
    "staircase",
    "spectrum",
    "ladder",
    "distances",
]
AxisScale = Literal["linear", "log"]
SpectrumKind = Literal["features", "weights", "distances"]
TheoryName = Literal["unified", "leading_order", "staircase", "random_features"]


class _Section(BaseModel):
    # Lax mode would take "3" and true for numbers.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _reader(field: setting.Field) -> Callable[[Any], Any]:
    """A field's own check, in the one way in which pydantic takes a complaint."""

    def read(value: Any) -> Any:
        try:
            return field.read(value)
        except (TypeError, OSError) as error:
            raise ValueError(str(error)) from None

    return read


def _meaning(field: setting.Field) -> str:
    """A field's help as part of a sentence."""
    return field.help[0].lower() + field.help[1:].rstrip(".")


def _given(field: setting.Field) -> Any:
    """How a field of a setting is given: a function by its spec, which is read with the problem."""
    kind = str if field.kind == "function" else Annotated[Any, BeforeValidator(_reader(field))]
    return kind, Field(... if field.required else field.default, description=_meaning(field))


def _varied(field: setting.Field) -> Any:
    """How a field of a setting is swept."""
    read = _reader(field)
    kind: Any = Numbers if field.kind == "number" else Words
    if field.kind != "function":
        kind = Annotated[kind, AfterValidator(lambda values: tuple(read(value) for value in values))]
    return kind | None, Field(None, description=_meaning(field))


_PROBLEM: dict[str, Any] = {field.name: _given(field) for field in FIELDS}
_Given: type[_Section] = create_model("_Given", __base__=_Section, **_PROBLEM)


class ProblemSection(_Given):  # type: ignore[valid-type, misc]
    """What is studied: every field of a setting."""

    centred: list[bool] = Field(
        default_factory=lambda: [True, True],
        min_length=2,
        max_length=2,
        description="whether the mean is taken out of the activation and of the teacher",
    )


class SizesSection(_Section):
    """How many samples, inputs and neurons; any numbers and ratios that determine them."""

    n_samples: Whole | None = Field(None, ge=1, le=10**300, description=SIZE_NAMES["n_samples"])
    dim: Whole | None = Field(None, ge=1, le=10**300, description=SIZE_NAMES["dim"])
    width: Whole | None = Field(None, ge=1, le=10**300, description=SIZE_NAMES["width"])
    n_step_samples: Whole | None = Field(None, ge=1, le=10**300, description=SIZE_NAMES["n_step_samples"])
    phi: float | None = Field(None, gt=0, allow_inf_nan=False, description=SIZE_NAMES["phi"])
    psi: float | None = Field(None, gt=0, allow_inf_nan=False, description=SIZE_NAMES["psi"])
    psi1: float | None = Field(None, gt=0, allow_inf_nan=False, description=SIZE_NAMES["psi1"])
    psi2: float | None = Field(None, gt=0, allow_inf_nan=False, description=SIZE_NAMES["psi2"])
    samples_per_width: float | None = Field(
        None, gt=0, allow_inf_nan=False, description=SIZE_NAMES["samples_per_width"]
    )
    step_samples_per_dim: float | None = Field(
        None, gt=0, allow_inf_nan=False, description=SIZE_NAMES["step_samples_per_dim"]
    )


class _Numbers(_Section):
    """What can be swept beside the fields of a setting."""

    step_exponent: Numbers | None = Field(None, description="alpha, for eta = n0^alpha")
    step_size: Numbers | None = Field(None, description="eta, zero or more")
    next_step_exponent: Later | None = Field(
        None, description="alpha of a second step, or a list for each later one"
    )
    next_step_size: Later | None = Field(
        None, description="eta of a second step, or a list for each later one"
    )
    ridge: Numbers | None = Field(None, description="lambda, positive")
    ridge_cui: Numbers | None = Field(None, description="lambda_C = lambda n/N, positive [Cui24]")
    n_samples: Numbers | None = Field(None, description=SIZE_NAMES["n_samples"])
    dim: Numbers | None = Field(None, description=SIZE_NAMES["dim"])
    width: Numbers | None = Field(None, description=SIZE_NAMES["width"])
    n_step_samples: Numbers | None = Field(None, description=SIZE_NAMES["n_step_samples"])
    phi: Numbers | None = Field(None, description=SIZE_NAMES["phi"])
    psi: Numbers | None = Field(None, description=SIZE_NAMES["psi"])
    psi1: Numbers | None = Field(None, description=SIZE_NAMES["psi1"])
    psi2: Numbers | None = Field(None, description=SIZE_NAMES["psi2"])
    samples_per_width: Numbers | None = Field(None, description=SIZE_NAMES["samples_per_width"])
    step_samples_per_dim: Numbers | None = Field(None, description=SIZE_NAMES["step_samples_per_dim"])


# Numbers first: the order of the names is the order in which a sweep runs through them.
_SWEPT: dict[str, Any] = {
    field.name: _varied(field) for field in sorted(FIELDS, key=lambda f: f.kind != "number")
}
_Axes: type[_Numbers] = create_model("_Axes", __base__=_Numbers, **_SWEPT)


class SweepSection(_Axes):  # type: ignore[valid-type, misc]
    """What varies: each a value, a list or a range; all combinations, except what is zipped."""

    zip: Groups = Field((), description="groups of names whose lists advance together")

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The swept names with their values."""
        fields = type(self).model_fields
        return {
            name: getattr(self, name) for name in fields if name != "zip" and getattr(self, name) is not None
        }

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        axes = self.axes()
        wrong = []
        if (self.step_exponent is None) == (self.step_size is None):
            wrong.append("give step_exponent (alpha) or step_size (eta), one of the two")
        if (self.ridge is None) == (self.ridge_cui is None):
            wrong.append("give ridge (lambda) or ridge_cui (lambda_C), one of the two")
        if self.next_step_exponent is not None and self.next_step_size is not None:
            wrong.append("give next_step_exponent or next_step_size, not both")
        for name in ("step_size", "next_step_size"):
            least = min(flat(axes.get(name, ())), default=0.0)
            if least < 0:
                wrong.append(f"{name} must not be negative, got {least:g}")
        for name in ("ridge", "ridge_cui"):
            values = getattr(self, name)
            if values is not None and min(values) <= 0:
                wrong.append(f"{name} must be positive, got {min(values):g}")
        seen: set[str] = set()
        for group in self.zip:
            unknown = [name for name in group if name not in axes]
            if unknown:
                wrong.append(f"zip names {', '.join(unknown)}, which the sweep does not vary")
            elif len({len(axes[name]) for name in group}) > 1:
                lengths = ", ".join(f"{name} has {len(axes[name])}" for name in group)
                wrong.append(f"zipped lists must be equally long: {lengths}")
            if seen & set(group):
                wrong.append(f"{', '.join(sorted(seen & set(group)))} stands in two groups of zip")
            seen |= set(group)
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class SimulationSection(_Section):
    """Networks at finite size; left out for theory alone."""

    replicas: Whole = Field(
        8, ge=1, le=MOST_REPLICAS, description="independent draws of each problem and size"
    )
    seed: Whole = Field(0, ge=0, description="same seed, same numbers")
    dtype: Literal["float64", "float32"] = Field("float64", description="precision")
    test: Literal["auto", "population", "sample"] = Field("auto", description="how the test error is found")
    n_test: Whole | None = Field(None, ge=2, description="size of a test sample")
    extras: tuple[Extra, ...] = Field((), description="further quantities", strict=False)
    target_stderr: float | None = Field(
        None, gt=0, description="add replicas until the standard error is this"
    )
    target_quantity: str = Field("test_error", description="the quantity whose standard error counts")
    max_replicas: Whole | None = Field(
        None, ge=1, le=MOST_REPLICAS, description="most replicas for target_stderr"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.target_stderr is not None:
            if self.max_replicas is None:
                raise ValueError("target_stderr needs max_replicas, the most that may be drawn")
            if self.max_replicas < self.replicas:
                raise ValueError(f"max_replicas {self.max_replicas} is below replicas {self.replicas}")
            if self.replicas < 2:
                raise ValueError("target_stderr needs at least 2 replicas to start with")
        elif self.max_replicas is not None:
            raise ValueError("max_replicas has a meaning only together with target_stderr")
        return self


class SpectraSection(_Section):
    """Spectra at the step sizes of the sweep, simulated and predicted."""

    of: tuple[SpectrumKind, ...] = Field(
        description="whose singular values, or distances F - F_l", strict=False
    )
    replicas: Whole = Field(
        1, ge=0, le=MOST_REPLICAS, description="independent draws; 0 for the prediction alone"
    )
    seed: Whole = Field(0, ge=0, description="same seed, same numbers")
    curve: Numbers | None = Field(
        None, description="finer steps for the predicted lines, named as in the sweep"
    )


class TheorySection(_Section):
    """A theory, at the points of the sweep and along a curve of its own."""

    name: TheoryName = Field(description="which theory")
    label: str = Field("", description="text of the legend; the theory's own name unless given")
    options: dict[str, Any] = Field({}, description="further arguments of the theory")
    curve: dict[str, Numbers] = Field({}, description="finer values of swept names, for lines")
    only: dict[str, Any] = Field({}, description="the values of swept names for which the theory is asked")

    @property
    def chosen(self) -> dict[str, tuple[Any, ...]]:
        """The values of swept names to which the theory is restricted."""
        return {name: _read_any(value) for name, value in self.only.items()}

    @model_validator(mode="after")
    def _known_values(self) -> Self:
        for name in self.only:
            if name not in SweepSection.model_fields or name == "zip":
                raise ValueError(f"only names {name}, which cannot be swept")
            if name in self.curve:
                raise ValueError(f"{name} stands in only and in curve: leave one of them out")
        # Read once, so that a mistake is told with the others of the file.
        _ = self.chosen
        return self

    @model_validator(mode="after")
    def _known_options(self) -> Self:
        if self.options:
            from firststep.theory import MODULES

            solve = import_module(MODULES[self.name]).solve
            try:
                check_names(f"the {self.name} theory", self.options, list(signature(solve).parameters)[4:])
            except TypeError as error:
                raise ValueError(str(error)) from None
        return self


class MapOptions(_Section):
    """What a map takes beside its axes and its quantity."""

    x_scale: AxisScale = Field("linear", description="scale along x")
    y_scale: AxisScale = Field("linear", description="scale along y")
    contour: Numbers = Field((), description="values of the quantity along which a line is drawn")
    range: tuple[float, float] | None = Field(
        None, description="values of both ends of the colours", strict=False
    )
    ends: tuple[str, str] | None = Field(None, description="words for both ends of the colours", strict=False)
    lines: dict[str, float] = Field({}, description="places along x with their names")
    texts: dict[str, Annotated[tuple[float, float], Field(strict=False)]] = Field(
        {}, description="words at places (x, y)"
    )
    where: dict[str, Any] = Field({}, description="the values of what else is swept")


class FigureSection(_Section):
    """A figure of the report."""

    kind: FigureKind = Field(description="which figure")
    title: str = Field("", description="above the figure; made from the setting unless given")
    caption: str = Field("", description="what is seen, in a sentence or two")
    x: str = Field("", description="swept name along the horizontal axis")
    y: str = Field("", description="swept name along the vertical axis of a map")
    quantities: tuple[str, ...] = Field((), description="what is drawn", strict=False)
    options: dict[str, Any] = Field({}, description="what else the kind of figure takes")

    @property
    def map_options(self) -> MapOptions:
        """The options of a map, checked."""
        return MapOptions.model_validate(self.options)

    @model_validator(mode="after")
    def _known_map(self) -> Self:
        if self.kind != "map":
            if self.y:
                raise ValueError(
                    f"y = {self.y!r} belongs to a map; the quantities of {self.kind} are along y"
                )
            return self
        if not (self.x and self.y and self.x != self.y):
            raise ValueError(f"a map needs two swept names, x and y, got {self.x!r} and {self.y!r}")
        if len(self.quantities) > 1:
            raise ValueError(f"a map shows one quantity, got {', '.join(self.quantities)}")
        try:
            _ = self.map_options
        except ValidationError as error:
            told = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r}" for e in error.errors())
            known = ", ".join(MapOptions.model_fields)
            raise ValueError(f"options of a map are {known}; {'; '.join(told)}") from None
        return self


def _read_any(value: Any) -> tuple[Any, ...]:
    """Values of a name that is swept: texts, numbers or sequences."""
    words = isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], str))
    return read_words(value) if words else read_later(value)


# What a key leaves out where it has its default, so that the keys of older stores stay valid.
_DEFAULTS = {field.name: field.default for field in FIELDS if field.quiet}
_LATER = ("next_step_exponent", "next_step_size")


class Experiment(_Section):
    """A checked experiment file."""

    title: str = Field(description="one line")
    description: str = Field("", description="what it shows: paragraphs, with formulas between $ signs")
    reference: str = Field("", description="key of the paper, such as [Ba22, fig. 3]")
    problem: ProblemSection = Field(description="what is studied")
    sizes: SizesSection = Field(
        default_factory=lambda: SizesSection.model_validate({}), description="samples, inputs and neurons"
    )
    sweep: SweepSection = Field(description="what varies")
    compare: tuple[str, ...] = Field(
        COMPARED,
        description="quantities whose distance between theory and simulation is stated",
        strict=False,
    )
    simulation: SimulationSection | None = Field(None, description="networks at finite size")
    spectra: SpectraSection | None = Field(None, description="spectra on request")
    theory: tuple[TheorySection, ...] = Field((), description="theories", strict=False)
    figure: tuple[FigureSection, ...] = Field((), description="figures of the report", strict=False)

    @model_validator(mode="after")
    def _swept_maps(self) -> Self:
        swept = {name: values for name, values in self.sweep.axes().items() if len(values) > 1}
        for section in (one for one in self.figure if one.kind == "map"):
            asked = [section.x, section.y, *section.map_options.where]
            unknown = [name for name in asked if name not in swept]
            if unknown:
                known = ", ".join(swept) or "nothing"
                raise ValueError(f"a map names {', '.join(unknown)}, but the sweep varies {known}")
            axes = {section.x, section.y}
            worded = sorted(name for name in axes if not all(map(_is_number, swept[name])))
            if worded:
                raise ValueError(f"{', '.join(worded)} cannot be an axis of a map: it has numbers along it")
            if any(axes <= set(group) for group in self.sweep.zip):
                raise ValueError(
                    f"a map over {section.x} and {section.y} needs all their pairs: do not zip them"
                )
            along = set(asked).union(*(group for group in self.sweep.zip if set(asked) & set(group)))
            left = [name for name in swept if name not in along]
            if left:
                raise ValueError(
                    f"beside x and y of a map the sweep varies {', '.join(left)}: choose with where"
                )
        return self

    @property
    def key(self) -> str:
        """Stable hash of everything that is computed; titles, texts and figures do not matter."""
        texts = {"title", "description", "reference", "figure", "compare"}
        content = self.model_dump(mode="json", exclude=texts)
        centred = {"centred": [True, True]}
        for section, unsaid in (
            ("problem", _DEFAULTS | centred),
            ("sweep", dict.fromkeys([*_DEFAULTS, *_LATER])),
        ):
            kept = content[section].items()
            content[section] = {n: v for n, v in kept if not (n in unsaid and v == unsaid[n])}
        content["theory"] = [{n: v for n, v in t.items() if n != "only" or v} for t in content["theory"]]
        return stable_key(content)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A document with the entries of a variant put in place of its own, table by table.

    Examples
    --------
    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    result = dict(base)
    for name, value in changes.items():
        old = result.get(name)
        is_range = isinstance(value, Mapping) and "count" in value
        both = isinstance(value, Mapping) and isinstance(old, Mapping) and not is_range
        result[name] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def parse(text: str, *, variant: str | None = None, origin: str = "experiment") -> Experiment:
    r"""Read an experiment from the text of a TOML file.

    Parameters
    ----------
    text : str
        The file's content.
    variant : str, optional
        Name of a ``[variant.<name>]`` table whose entries replace those of the file.
    origin : str
        How errors name the file.

    Raises
    ------
    ExperimentError
        With every mistake: where it is, what stands there, and what is wanted.

    Examples
    --------
    >>> text = 'title = "t"\n[problem]\nactivation = "relu"\nteacher = "h1"\n[sweep]\nridges = 2'
    >>> try:
    ...     parse(text)
    ... except ExperimentError as error:
    ...     print(error.problems[0])
    line 6, sweep.ridges: unknown key; did you mean 'ridge' (lambda, positive)?
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(origin, [f"not valid TOML: {error}"]) from None
    except RecursionError:
        raise ExperimentError(origin, ["not valid TOML: nested too deeply"]) from None
    except ValueError:
        # Python's own limit: it would take minutes to read such a number.
        raise ExperimentError(origin, ["not valid TOML: a number has more than 4300 digits"]) from None
    variants = document.pop("variant", {})
    if not isinstance(variants, Mapping) or not all(
        isinstance(entry, Mapping) for entry in variants.values()
    ):
        raise ExperimentError(origin, ["variant: must hold tables, as in [variant.quick.simulation]"])
    if variant is not None:
        if variant not in variants:
            known = ", ".join(variants) or "none"
            raise ExperimentError(origin, [f"there is no variant {variant!r}; the file has {known}"])
        document = merged(document, variants[variant])
    try:
        return Experiment.model_validate(document)
    except ValidationError as error:
        found = [_described(entry, text) for entry in error.errors()]
        raise ExperimentError(origin, dict.fromkeys(found)) from None


def variants_of(text: str) -> tuple[str, ...]:
    """Names of the variants in the text of an experiment file."""
    return tuple(tomllib.loads(text).get("variant", {}))


def load(path: str | Path, *, variant: str | None = None) -> Experiment:
    """Read an experiment file; see `parse`."""
    file = Path(path)
    try:
        text = read_text(file)
    except (OSError, ValueError) as error:
        raise ExperimentError(str(path), [f"cannot be read: {error}"]) from None
    return parse(text, variant=variant, origin=str(path))


def _described(entry: Any, text: str) -> str:
    """One mistake as a sentence: line, place, what is wrong, what is wanted."""
    # Names of types between the keys have brackets; so may a key that is not known, which comes last.
    place = [part for part in entry["loc"] if not isinstance(part, str) or not set("([") & set(part)]
    if entry["type"] == "extra_forbidden" and place[-1:] != [entry["loc"][-1]]:
        place.append(entry["loc"][-1])
    line = line_of(text, place)
    where = (f"line {line}, " if line else "") + (".".join(map(str, place)) or "the file")
    fields = _fields_at(place[:-1])
    field = fields.get(str(place[-1])) if place else None
    meaning = f" ({field.description})" if field is not None and field.description else ""
    got = entry["input"]
    match entry["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(str(place[-1]), fields, n=1, cutoff=0.5)
            if near:
                return f"{where}: unknown key; did you mean {near[0]!r} ({fields[near[0]].description})?"
            return f"{where}: unknown key; allowed here: {', '.join(fields)}"
        case "missing":
            return f"{where}: is missing{meaning}"
        case "value_error":
            return f"{where}{meaning}: {entry['ctx']['error']}"
        case "literal_error":
            return f"{where}{meaning}: must be one of {entry['ctx']['expected']}, got {got!r}"
        case _:
            wanted = (
                str(entry["msg"]).replace("Input should be", "must be").replace("a valid tuple", "a list")
            )
            return f"{where}{meaning}: {wanted}, got {got!r}"


def _fields_at(place: list[Any]) -> dict[str, Any]:
    """The fields that are known at a place in the document."""
    model: Any = Experiment
    for part in place:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model is not None else None
        model = next((kind for kind in _models_in(field.annotation)), None) if field is not None else None
    return dict(model.model_fields) if model is not None else {}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def line_of(text: str, place: list[Any]) -> int | None:
    r"""Line of a TOML text where a key stands, or its table begins; None where it cannot be told.

    Examples
    --------
    >>> line_of("a = 1\n[b]\nc = 2\n", ["b", "c"])
    3
    """
    names = [str(part) for part in place if not isinstance(part, int)]
    index = next((part for part in place if isinstance(part, int)), 0)
    table: list[str] = []
    counts: dict[str, int] = {}
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        head = re.match(r"\s*\[{1,2}\s*([\w.\"'-]+)\s*\]{1,2}", line)
        if head:
            table = [part.strip("\"'") for part in head[1].split(".")]
            if line.lstrip().startswith("[["):
                counts[head[1]] = counts.get(head[1], -1) + 1
            found = table
        else:
            key = re.match(r"\s*([\w.\"'-]+)\s*=", line)
            if not key:
                continue
            found = [*table, *(part.strip("\"'") for part in key[1].split("."))]
        if counts.get(found[0], index) != index:
            continue
        depth = len(found)
        if names[:depth] == found and (best is None or depth > best[0]):
            best = (depth, number)
    return best[1] if best else None
