"""A writer in a process of its own, which is killed at one of the steps of its write."""

import os

from commit_steps import die_at
from kill_rounds import carry_out
from shard_kills import QUERY

from latelier import indexes
from latelier.utils.ray_session import require_ray


def write_and_die(folder, address, place, operation):
    """Connect to Ray, open the index, write, and die at a step."""
    require_ray("Testing").init(address=address, log_to_driver=False, logging_level="ERROR")
    with indexes.open(folder) as index:
        index.search(QUERY)
        die_at(place)
        carry_out(index, *operation)
        os._exit(0)
