"""Sphinx configuration; ./run docs builds with warnings as errors."""

import sys
from pathlib import Path

import firststep

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "firststep"
author = "The firststep authors"
copyright = author
version = release = firststep.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "citation_keys",
    "mathml",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "firststep"
html_static_path = ["_static"]
html_css_files = ["style.css"]

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3

autosummary_context = {"public": firststep.__all__}
autodoc_typehints = "none"  # numpydoc's sections say the types in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
