"""Sphinx: the pages of this folder, the notebooks, and the reference from the docstrings of the public packages."""

import os
import shutil
import sys
from pathlib import Path

import latelier

project = "Latelier"
author = "The Latelier authors"
release = version = latelier.__version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_design",
    "reference",
]
exclude_patterns = ["assets"]
default_role = "py:obj"  # `Flat` in a docstring links to the class

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "show-inheritance": True,
}
autodoc_typehints = "signature"
autodoc_preserve_defaults = False  # it takes them from the source, where a method's options are not listed one by one
maximum_signature_line_length = 80  # longer ones take a line for each parameter
python_use_unqualified_type_names = True
numpydoc_show_class_members = False  # autodoc lists them
numpydoc_class_members_toctree = False

intersphinx_mapping = {}

# The notebooks of examples/ have no outputs; copies of them are executed here, without network, and what they show is
# checked by tests/test_notebooks.py. A bar that has reached its end says nothing on a page, and as a widget would need
# scripts from elsewhere. Threads that wait for one another leave the cores to what else runs.
shutil.rmtree(HERE / "notebooks", ignore_errors=True)
shutil.copytree(
    HERE.parent / "examples", HERE / "notebooks", ignore=shutil.ignore_patterns("*.py", "__pycache__", ".*")
)
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", OMP_WAIT_POLICY="PASSIVE")
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # seconds for a cell
nb_merge_streams = True

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = f"Latelier {version}"
html_static_path = []
html_copy_source = False
html_show_sourcelink = False
