"""Settings that users keep with an index."""

import re

import pytest

from latelier import indexes


def test_settings_have_no_names_that_cannot_be_stored():
    settings = indexes.Flat().settings
    for name in ("\ud800", 5, None, "other"):
        assert name not in settings
        for use in (settings.__getitem__, settings.__delitem__):
            with pytest.raises(KeyError, match=re.escape(repr(name))):
                use(name)
