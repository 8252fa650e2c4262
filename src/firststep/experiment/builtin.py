"""The experiments that come with the package: one file for each published figure."""

from importlib.resources import files


def builtin_experiments() -> dict[str, str]:
    """Texts of the experiment files by name, in the order of the report.

    Examples
    --------
    >>> "staircase-emerging" in builtin_experiments()
    True
    """
    folder = files("firststep.experiment").joinpath("files")
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    # 04-name.toml: the number gives the order, and is no part of the name.
    return {
        name.removesuffix(".toml").partition("-")[2]: folder.joinpath(name).read_text(encoding="utf-8")
        for name in found
    }
