"""Sphinx configuration; ./run docs builds with warnings as errors."""

import os
import sys
from pathlib import Path

# Before NumPy is imported: the tutorial is timed and drawn with one BLAS thread on every machine.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

# Dask tells what it does in many lines unless asked not to.
os.environ["DASK_DISTRIBUTED__LOGGING__DISTRIBUTED"] = "warning"

from sphinx.ext import autosummary  # noqa: E402 - not before the lines above

import firststep  # noqa: E402

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
    "sphinx_gallery.gen_gallery",
    "citation_keys",
    "formula_table",
    "mathml",
    "notebooks",
    "paper",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "tutorial/*.ipynb", "tutorial/*.py"]

html_theme = "furo"
html_title = "firststep"
html_static_path = ["_static"]
html_css_files = ["style.css"]

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3

# A summary ends at the first full stop that ends a sentence; that of "eqs. 1-6" does not.
autosummary.WELL_KNOWN_ABBREVIATIONS += (" eq.", " eqs.", " fig.")
autosummary_context = {"public": firststep.__all__}
autodoc_typehints = "none"  # numpydoc's sections say the types in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False


def _skip(app, what, name, obj, skip, options):
    # scikit-learn gives every estimator methods whose texts refer to its own manual.
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app):
    """Leave out what is not ours."""
    app.connect("autodoc-skip-member", _skip)


sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "tutorial",
    "filename_pattern": r"/\d_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 60,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib",),
    "first_notebook_cell": "# pip install 'firststep[all]' brings what this page uses.\n%matplotlib inline",
    "image_srcset": ["2x"],
}
