"""Maintenance that is due after few tokens already, so that small indexes have inverted lists."""

import pytest
from ivf_helpers import EARLY

from latelier import indexes


@pytest.fixture
def early(monkeypatch):
    """Inverted lists are made from a thousand tokens on, and documents appended for every hundred."""
    monkeypatch.setattr(indexes.IVF, "_thresholds", EARLY)
