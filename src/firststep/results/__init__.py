"""What simulation and theory answer with."""

from firststep.results.drawn import Distances, DrawnSpectrum, FoundOutliers, spectrum_of
from firststep.results.outcome import Outcome
from firststep.results.replicas import NETWORK, Averages, Measured
from firststep.results.spectrum import LabelOutliers, Outlier, Spectrum

__all__ = [
    "NETWORK",
    "Averages",
    "Distances",
    "DrawnSpectrum",
    "FoundOutliers",
    "LabelOutliers",
    "Measured",
    "Outcome",
    "Outlier",
    "Spectrum",
    "spectrum_of",
]
