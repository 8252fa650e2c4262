"""Laws of the readout before the step: one file each, which has a `LAW`, and one line of registration here."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firststep.setting.readouts.law import ReadoutLaw

# The file of a law, and what it means. The first is the default.
MEANINGS = {
    "gaussian": "N(0, 1/N)",
    "rademacher": "±1/√N",
    "constant": "1/√N",
    "laplace": "Laplace of variance 1/N",
}


class _Laws(Mapping[str, "ReadoutLaw"]):
    """Laws by name, each imported when it is first asked for: --help names them without NumPy."""

    def __getitem__(self, name: str) -> "ReadoutLaw":
        if name not in MEANINGS:
            raise KeyError(name)
        law: ReadoutLaw = import_module(f"{__name__}.{name}").LAW
        return law

    def __iter__(self) -> Iterator[str]:
        return iter(MEANINGS)

    def __len__(self) -> int:
        return len(MEANINGS)


READOUTS: Mapping[str, "ReadoutLaw"] = _Laws()
