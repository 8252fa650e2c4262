"""Rows as an xarray dataset with named dimensions."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray

MOST_CELLS = 20_000_000


def dataset(records: Sequence[tuple[dict[str, Any], dict[str, float]]]) -> "xarray.Dataset":
    """Dataset of identified values: columns that vary become dimensions, or labels along one of them."""
    import xarray

    identities = [_comparable(identity) for identity, _ in records]
    names = dict.fromkeys(name for identity in identities for name in identity)
    columns = {name: [identity.get(name, "") for identity in identities] for name in names}
    fixed = {name: column[0] for name, column in columns.items() if len(set(column)) == 1}
    varying = {name: column for name, column in columns.items() if name not in fixed}
    if {"step_size", "step_exponent"} <= varying.keys():
        finer = len(set(varying["step_size"])) > len(set(varying["step_exponent"]))
        varying.pop("step_size" if finer else "step_exponent")
    axes: dict[str, list[Any]] = {}
    labels: dict[str, tuple[str, list[Any]]] = {}
    for name, column in varying.items():
        # Sizes that grow together, say, are one dimension: the first, with the others as its labels.
        leader = next(
            (axis for axis in axes if len(set(zip(varying[axis], column, strict=True))) == len(axes[axis])),
            None,
        )
        if leader is None:
            mixed = len({isinstance(value, str) for value in column}) > 1
            axes[name] = sorted(set(column), key=str if mixed else None)
        else:
            of = dict(zip(varying[leader], column, strict=True))
            labels[name] = (leader, [of[value] for value in axes[leader]])
    measured = list(dict.fromkeys(name for _, values in records for name in values))
    shape = tuple(len(axis) for axis in axes.values())
    if math.prod(shape) * len(measured) > MOST_CELLS:
        raise ValueError(
            f"the rows would fill a grid of {' x '.join(map(str, shape))} with {len(measured)} quantities: "
            "ask for fewer, as in to_xarray(source='simulation', width=750), or use to_parquet"
        )
    places = [{value: i for i, value in enumerate(axis)} for axis in axes.values()]
    cubes = {name: np.full(shape, np.nan) for name in measured}
    for identity, (_, values) in zip(identities, records, strict=True):
        index = tuple(place[identity.get(name, "")] for name, place in zip(axes, places, strict=True))
        for name, value in values.items():
            cubes[name][index] = value
    return xarray.Dataset(
        {name: (tuple(axes), cube) for name, cube in cubes.items()}, {**axes, **labels}, fixed
    )


def _comparable(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Values that can be coordinates: None becomes a word or, for the exponent of no step, minus infinity."""
    plain: dict[str, Any] = {}
    for name, value in identity.items():
        if name == "step_exponent":
            # The same exponent at two sizes comes back with different last digits.
            plain[name] = -math.inf if value is None else round(value, 12)
        elif value is None:
            plain[name] = ""
        else:
            plain[name] = value if isinstance(value, str | int | float) else json.dumps(value)
    return plain
