"""Results as data frames of pandas and datasets of xarray, which are imported only then."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    import xarray


def data_frame(rows: Sequence[Mapping[str, Any]], dtype: Any = None) -> "pandas.DataFrame":
    """Rows as a data frame; what is missing is NaN."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_dataframe needs pandas: install firststep[data]") from error
    return pandas.DataFrame(rows, dtype=dtype)


def dataset(
    values: Mapping[str, Any], coordinates: Mapping[str, Any], facts: Mapping[str, Any]
) -> "xarray.Dataset":
    """Named arrays over named axes, with facts as attributes."""
    try:
        import xarray
    except ImportError as error:
        raise ImportError("to_xarray needs xarray: install firststep[export]") from error
    return xarray.Dataset(values, coordinates, facts)


def beside(answers: Mapping[str, "xarray.Dataset"], quantities: Sequence[str]) -> "xarray.Dataset":
    """Quantities of several answers to one question along an axis `source`; standard errors are the first's."""
    import xarray

    names, sets = list(answers), list(answers.values())
    joined = xarray.concat([one[list(quantities)] for one in sets], xarray.Variable("source", names))
    errors = [f"{name}_stderr" for name in quantities if f"{name}_stderr" in sets[0]]
    joined.attrs = {name: value for name, value in sets[0].attrs.items() if name != "source"}
    return joined.assign({name: sets[0][name] for name in errors})
