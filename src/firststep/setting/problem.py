"""A problem: every part of a setting but its sizes, step sizes and ridges."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from firststep.gaussian import Function, MultiFunction, function, teacher_function
from firststep.setting.covariance import Covariance, covariance_named
from firststep.setting.declared import BY_NAME, FIELDS
from firststep.setting.fields import REQUIRED
from firststep.setting.inputs import MOST_VALUES, Inputs
from firststep.setting.keys import stable_key
from firststep.setting.network import INITIAL_OUTPUTS, ROWS, OutputLaw, RowLaw
from firststep.setting.readouts import READOUTS
from firststep.setting.readouts.law import ReadoutLaw
from firststep.setting.sizes import Sizes
from firststep.setting.training import FIT_SAMPLES, RULES, STEP_SAMPLES, SampleChoice, StepRule

# Below this a Hermite coefficient is an averaging error, not a coefficient (built-in averages are right to 1e-10).
NEGLIGIBLE = 1e-9


class OutsideTheoryWarning(UserWarning):
    """The problem is well defined, but an assumption of the theory does not hold."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Problem:
    r"""A two-layer network and the teacher it learns from, of one direction or of a few.

    .. math:: y = s(\beta \cdot x) + \varepsilon, \quad x \sim N(0, I_d), \quad
        f(x) = \tau\, a \cdot \sigma(W_0 x)

    Parameters
    ----------
    activation : str, sequence, callable or Function
        :math:`\sigma`: a name (``"relu"``), an expression (``"tanh(2*x)"``), Hermite coefficients or a callable;
        see :func:`firststep.function`. Centred by default: ``"relu"`` means ``max(x, 0) - 1/sqrt(2 pi)``.
    teacher : str, sequence, mapping, callable, Function or MultiFunction
        :math:`s`, given in the same ways, or of up to four directions: ``"t1 + t1*t2"``; see
        :func:`firststep.gaussian.teacher_function`.
    noise_std : float
        Standard deviation of the label noise :math:`\varepsilon`, zero or more.
    rows : {"gaussian", "sphere"}
        First-layer rows :math:`N(0, I/d)` or uniform on the unit sphere.
    readout : str
        Second layer at the start: ``"gaussian"`` :math:`N(0, 1/N)`, ``"rademacher"`` :math:`\pm 1/\sqrt N`,
        ``"constant"`` :math:`1/\sqrt N`, or another law of `firststep.setting.readouts`.
    initial_output : {"vanishing", "order_one"}
        :math:`\tau = 1/\sqrt N`, so that the network starts at zero [Ba22]_, [Cui24]_, or :math:`\tau = 1` [Moniri24]_.
    inputs : str or sequence
        Covariance S of the inputs, of trace d: ``"isotropic"``, ``"power(0.5)"`` (eigenvalue i proportional to
        :math:`i^{-0.5}`), ``"levels(0.3, 1.7)"`` (equal shares), ``"spiked(10, overlap=0.5)"``, or eigenvalues.
    alignment : str or sequence
        The teacher's whitened direction among the eigenvalues: ``"typical"``, ``"eigenvalues"`` (weights proportional
        to them), ``"eigenvalues(2)"`` (to a power), ``"weights(0.9, 0.1)"`` (one for each level).
    step_rule : {"gradient", "whitened", "sign", "muon"}
        How a step is made from the gradient.
    step_sample : {"fresh", "same"}
        Sample of the second and later steps.
    fit_sample : {"fresh", "step"}
        Sample of the ridge fit.

    Examples
    --------
    >>> problem = Problem("relu", "h1 + h2/sqrt(2)", noise_std=0.5)
    >>> print(f"{problem.activation.hermite(2)[1]:.3f}")
    0.500
    """

    if TYPE_CHECKING:
        activation: Function
        teacher: Function | MultiFunction
        noise_std: float
        rows: str
        readout: str
        initial_output: str
        inputs: str
        alignment: str
        step_rule: str
        step_sample: str
        fit_sample: str

    def __init__(self, *values: Any, **named: Any) -> None:
        try:
            given = self.__signature__.bind(*values, **named)
        except TypeError as error:
            raise TypeError(f"{error}; a Problem has the fields {', '.join(BY_NAME)}") from None
        given.apply_defaults()
        for field in FIELDS:
            object.__setattr__(self, field.name, field.read(given.arguments[field.name]))
        if any(getattr(self, field.name) != field.default for field in FIELDS if field.part == "inputs"):
            # Checked at a dimension that any words fit, so that a contradiction is named here.
            self.covariance(MOST_VALUES)

    __signature__ = inspect.Signature(
        [
            inspect.Parameter(
                field.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if field.default is REQUIRED else field.default,
            )
            for field in FIELDS
        ]
    )

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Problem) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in FIELDS if getattr(self, f.name) != f.default]
        return f"Problem({', '.join(shown)})"

    @property
    def readout_law(self) -> ReadoutLaw:
        """Law of the readout at the start."""
        return READOUTS[self.readout]

    @property
    def row_law(self) -> RowLaw:
        """Law of the rows at the start."""
        return ROWS[self.rows]

    @property
    def output_law(self) -> OutputLaw:
        """Size of the output at the start."""
        return INITIAL_OUTPUTS[self.initial_output]

    @property
    def rule(self) -> StepRule:
        """How a step is made from the gradient."""
        return RULES[self.step_rule]

    @property
    def later_samples(self) -> SampleChoice:
        """Samples of the second and later steps."""
        return STEP_SAMPLES[self.step_sample]

    @property
    def fitted_on(self) -> SampleChoice:
        """Sample of the fit."""
        return FIT_SAMPLES[self.fit_sample]

    def covariance(self, dim: int) -> Covariance:
        """Eigenvalues of the inputs' covariance and the teacher's weights, for d = `dim`."""
        return covariance_named(self.inputs, self.alignment, dim)

    @property
    def input_levels(self) -> tuple[float, ...]:
        """Eigenvalues of equal shares of the inputs' directions, where the covariance is given so."""
        return Inputs.parse(self.inputs).levels

    @property
    def input_spikes(self) -> tuple[float, ...]:
        """Strengths of single directions of the inputs, where the covariance is given so."""
        return Inputs.parse(self.inputs).spikes

    @property
    def isotropic(self) -> bool:
        """Whether all directions of the inputs have the same variance."""
        return Inputs.parse(self.inputs).isotropic

    @property
    def title(self) -> str:
        """The problem in a line: its functions, the noise, and what is not the default.

        Examples
        --------
        >>> Problem("relu", "h1", rows="sphere").title
        'relu network, teacher h1, no noise, sphere rows'
        """
        return ", ".join(filter(None, (field.titled(getattr(self, field.name)) for field in FIELDS)))

    def without_step(self) -> "Problem":
        """The simplest problem that is the same without a step, where no readout plays a part."""
        return self.replaced(initial_output="vanishing", readout="rademacher")

    def without_output(self) -> "Problem":
        """The same with an output that vanishes at the start."""
        return self.replaced(initial_output="vanishing")

    @property
    def noise_variance(self) -> float:
        """Variance of the label noise."""
        return self.noise_std**2

    @property
    def label_variance(self) -> float:
        """E y^2 = c*^2 + noise^2."""
        return self.teacher.second_moment + self.noise_variance

    def output_variance(self, sizes: "Sizes") -> float:
        r"""Limit of the variance of the network's output at the start, over the inputs.

        .. math:: E f_0^2 = E\sigma^2 \;[\; + 2 c_2^2 \tfrac{N}{d}\int m^2 d\mu \text{ if the readout is constant}\;]

        if it is of order one, else 0. A constant readout adds up what all neurons see of the norm of x
        [firststep]; simulated with c_1 = 1, c_2 = 1/2, N/d = 1.5 (limit 2.25): 2.242(12) at d = 1000.

        Examples
        --------
        >>> setting = Problem([0, 1, 0.5], "identity", readout="constant", initial_output="order_one")
        >>> print(f"{setting.output_variance(Sizes(1000, 500, 750)):.2f}")
        2.25
        """
        if not self.output_law.order_one:
            return 0.0
        shared = self.readout_law.mean**2 * sizes.width / sizes.dim * self.covariance(sizes.dim).moment(2)
        return self.activation.second_moment + 2 * float(self.activation.hermite(3)[2] ** 2) * shared

    def direction_norm_squared(self, sizes: "Sizes") -> float:
        r"""Limit :math:`B^2` of the squared norm of the step direction :math:`X^\top (y - f_0)/n_0`.

        .. math:: B^2 = c_{*1}^2 + \tfrac{d}{n_0}(c_*^2 + \sigma_\varepsilon^2)
            \quad [\;+\; c_1^2 + \tfrac{d}{n_0} E f_0^2 \text{ if the initial output is of order one}\;]

        [Moniri24, Prop. 1]; the bracket is [firststep]. A starting output of order one is a second signal,
        linear in x to leading order, that the gradient subtracts. Of a teacher of several directions,
        :math:`c_{*1} = |E\nabla s|`. For inputs of a covariance S it is the norm of what a step adds to the whitened
        weights, :math:`S \tilde b` for a gradient step and :math:`\tilde b` for a whitened one, with
        :math:`\tilde b = G^\top (y - f_0)/n_0` and :math:`X = G S^{1/2}`: the three parts are multiplied by
        :math:`\int m^2 d\nu`, :math:`\int m^2 d\mu` and :math:`\int m^3 d\mu`, or by one [firststep].

        Examples
        --------
        >>> setting = Problem("relu", "identity", noise_std=1, initial_output="order_one")
        >>> print(f"{setting.direction_norm_squared(Sizes(1000, 500, 750)):.2f}")
        2.42
        """
        law, power = self.covariance(sizes.dim), 0 if self.step_rule == "whitened" else 1
        variance = self.label_variance + self.output_variance(sizes)
        slope = float(self.teacher.hermite(2)[1])
        total = slope**2 * law.teacher_moment(2 * power) + sizes.step_ratio * variance * law.moment(2 * power)
        if self.output_law.order_one:
            total += float(self.activation.hermite(2)[1] ** 2) * law.moment(2 * power + 1)
        return total

    def concerns(self, sizes: "Sizes | None" = None) -> tuple[str, ...]:
        """Sentences that say which assumptions of the theory this problem breaks; empty when none.

        Examples
        --------
        >>> print(Problem("relu", "h2").concerns()[0])
        the teacher h2 has no linear part (c*_1 = 0): one gradient step learns nothing about it
        """
        found: list[str] = []
        c, c_star = self.activation.hermite(2), self.teacher.hermite(2)
        if isinstance(self.teacher, MultiFunction):
            found += self.teacher.what_steps_see()
        if abs(c_star[1]) < NEGLIGIBLE:
            found.append(
                f"the teacher {self.teacher.label} has no linear part (c*_1 = 0): "
                "one gradient step learns nothing about it"
            )
        if abs(c[1]) < NEGLIGIBLE:
            found.append(
                f"the activation {self.activation.label} has no linear part (c_1 = 0): "
                "the gradient has no rank-one part"
            )
        for word, what in (("activation", self.activation), ("teacher", self.teacher)):
            if abs(what.hermite(1)[0]) > NEGLIGIBLE:
                found.append(
                    f"the {word} {what.label} has mean {what.hermite(1)[0]:.3g}; "
                    "the theory assumes 0: leave centre=True"
                )
        if sizes is not None:
            ratios = {"d/n": sizes.sample_ratio, "d/N": sizes.width_ratio, "d/n0": sizes.step_ratio}
            found += [
                f"{name} = {value:.3g} is far from order one, where limits of proportional sizes hold"
                for name, value in ratios.items()
                if not 0.01 <= value <= 100
            ]
        return tuple(found)

    def replaced(self, **changes: Any) -> Self:
        """The same problem with some of its fields changed.

        Examples
        --------
        >>> Problem("relu", "identity").replaced(rows="sphere").rows
        'sphere'
        """
        return type(self)(**({name: getattr(self, name) for name in BY_NAME} | changes))

    def to_dict(self) -> dict[str, Any]:
        """Plain description from which `from_dict` builds the problem again (callables excepted)."""
        content = {field.name: field.plain(getattr(self, field.name)) for field in FIELDS}
        told = [f.name for f in FIELDS if not (f.quiet and content[f.name] == f.default)]
        centred = [function.centred for function in self.functions.values()]
        return {name: content[name] for name in told} | {"centred": centred}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`."""
        values = dict(content)
        centred = values.pop("centred", [True, True])
        values["activation"] = function(values["activation"], centre=centred[0])
        values["teacher"] = teacher_function(values["teacher"], centre=centred[1])
        return cls(**values)

    @property
    def functions(self) -> dict[str, Function]:
        """The functions among the fields, by name."""
        return {field.name: getattr(self, field.name) for field in FIELDS if field.kind == "function"}

    @cached_property
    def key(self) -> str:
        """Stable hash of the problem: equal for equal problems on every machine."""
        return stable_key(self.to_dict() | {name: what.key for name, what in self.functions.items()})
