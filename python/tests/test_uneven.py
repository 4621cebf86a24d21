"""Ranks that run out of data at different times: in the end all replicas are identical, with any loop."""

import pytest

from hexagram.testing import spawn

pytest.importorskip("torch")
import uneven_programs as programs  # noqa: E402 (it imports torch)

#: Limit for all ranks of a test, in seconds: generous, as only a hang takes this long.
LIMIT = 540


def test_replicas_are_one_in_the_end():
    for rank in spawn(3, programs.in_many_ways, timeout=LIMIT, deadline=240):
        assert [name for name, are_one in rank.items() if not are_one] == []


def test_batch_normalization_over_all_ranks_is_refused():
    for text in spawn(2, programs.refused, timeout=LIMIT, deadline=240):
        assert text is not None and "`1`" in text and "SyncBatchNorm" in text and "leave out uneven" in text
