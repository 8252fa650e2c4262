"""What simulation and theory answer with."""

from firststep.results.drawn import Distances, DrawnSpectrum, FoundOutliers, spectrum_of
from firststep.results.outcome import Outcome
from firststep.results.replicas import NETWORK, Averages, Measured
from firststep.results.size_map import SizeMap
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
    "SizeMap",
    "Spectrum",
    "spectrum_of",
]
