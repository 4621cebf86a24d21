"""Communication during the next forward pass, from Python: bit for bit as without, for every use of a parameter.

The step on unfinished work is made by the wait for it. So an access without a wait sees the value of the step before:
an error here does not depend on timing.
"""

import pytest

from hexagram.testing import outcomes_of, spawn

pytest.importorskip("torch")
import overlap_programs as programs  # noqa: E402 (it imports torch)

#: Limit for all ranks of a test, in seconds: generous, as only a hang takes this long.
LIMIT = 540


@pytest.fixture(scope="module", params=[2, 3])
def told(request):
    """The results of the programs, by name, on each of several ranks."""
    return spawn(request.param, programs.one_after_another, timeout=LIMIT)


@pytest.mark.parametrize("program", ["same", "waits", "readers"])
def test_every_way_holds(told, program):
    for rank in told:
        assert [name for name, holds in rank[program].items() if not holds] == []


def test_resumes_bit_for_bit(told):
    assert all(rank["resumed"] for rank in told)


def test_other_calls_between_steps(told):
    assert all(rank["switched"] for rank in told)


def test_buckets_that_are_cut_anew():
    # For two ranks, whose sums do not depend on the buckets.
    for rank in spawn(2, programs.tuned, timeout=LIMIT):
        assert [name for name, holds in rank.items() if not holds] == []


def test_four_ranks():
    for rank in spawn(4, programs.same, timeout=LIMIT):
        assert [name for name, holds in rank.items() if not holds] == []


def test_compiled_modules():
    for rank in spawn(2, programs.compiled, timeout=LIMIT):
        assert [name for name, holds in rank.items() if not holds] == []


def test_what_cannot_be_is_refused():
    for of_torch, in_python, gossip, background in spawn(2, programs.refused, timeout=LIMIT):
        assert 'such as "sgd(momentum=0.9)"' in of_torch
        assert "algorithm in Python" in in_python
        assert "decentralized" in gossip and "forward pass" in gossip
        assert "async-model-average" in background


def test_a_rank_that_dies_with_a_step_on_its_way_is_named():
    first, second, third = outcomes_of(3, programs.killed, timeout=LIMIT)
    assert (first.value, third.value) == (1, 1)
    assert (first.exitcode, second.exitcode, third.exitcode) == (None, -9, None)
