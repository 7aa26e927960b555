"""Sphinx: the pages of this folder, and the reference from the docstrings of the public packages."""

import latelier

project = "Latelier"
author = "The Latelier authors"
release = version = latelier.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx.ext.intersphinx", "sphinx.ext.viewcode"]
exclude_patterns = ["assets"]
default_role = "py:obj"  # `Flat` in a docstring links to the class

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "show-inheritance": True,
}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80  # longer ones take a line for each parameter
python_use_unqualified_type_names = True
numpydoc_show_class_members = False  # autodoc lists them
numpydoc_class_members_toctree = False

intersphinx_mapping = {}

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = f"Latelier {version}"
html_static_path = []
html_copy_source = False
html_show_sourcelink = False
