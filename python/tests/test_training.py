"""Training from Python: by the engine, under DDP by hooks, and by algorithms in Python.

Two ranks run most programs one after another, as starting Python and torch takes longer than all of them.
"""

import pytest
import torch
import training_programs as programs

from hexagram import _native
from hexagram.testing import outcomes_of, spawn

#: Time for all ranks of a test, in seconds: generous, as only what hangs takes so long.
LIMIT = 540


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each program of two ranks returned, by its name: on rank 0, and on rank 1."""
    return spawn(2, programs.one_after_another, str(tmp_path_factory.mktemp("ranks")), timeout=LIMIT)


def test_engine_and_hook_equal_ddp_on_gloo_bit_for_bit(told):
    for rank in told:
        assert rank["beside_ddp"] == [True] * 6


@pytest.mark.parametrize("algorithm", ["gradient-allreduce", "topk-ef", "choco-sgd", "slowmo(period=3)"])
def test_resumes_bit_for_bit(told, algorithm):
    assert [rank["resumed"][algorithm] for rank in told] == [True, True]


def test_unused_parameters_are_named_or_zero(told):
    for rank in told:
        gradients, error = rank["unused"]
        assert gradients == [0.5, [[0.5] * 4]]
        assert "`right.weight`" in error and "`right.bias`" in error


def test_mixed_precision(told):
    for rank in told:
        outcomes = rank["mixed_precision"]
        assert outcomes["grad scaler"] == (4, 2.0**9, True)
        assert outcomes["loss scale"] == ([False, True, False], 2, True, True)
        assert outcomes["bfloat16"] and outcomes["mean of bfloat16"]


def test_ranks_run_out_of_data_at_different_times(told):
    assert [rank["uneven"] for rank in told] == [(6, True)] * 2


def test_parameters_follow_an_algorithm_that_exchanges_buffers(told):
    x = [0.0, 0.0]
    expected = []
    for _ in range(5):
        # Each rank steps from the mean, with the gradient where it was.
        x = [sum(x) / 2 - 0.5 * (x[rank] - 4 * rank) for rank in range(2)]
        expected.append(x)
    assert [list(pair) for pair in zip(*(rank["gossiped"] for rank in told), strict=True)] == expected


def test_mean_switch_and_trace(told):
    outcomes = [rank["evaluated"] for rank in told]
    assert [outcome[:5] for outcome in outcomes] == [(True, True, True, "gradient-allreduce", 7)] * 2
    assert [outcome[5] for outcome in outcomes] == [True, False]


def test_batch_normalization_over_all_ranks_equals_one_rank(told):
    alone = programs.normalized(None)
    for rank in told:
        pairs = zip(alone, rank["normalized"], strict=True)
        numbers = (tuple(torch.tensor(values, dtype=torch.float64) for values in pair) for pair in pairs)
        assert all(torch.allclose(*pair, rtol=0, atol=1e-9) for pair in numbers)


def test_algorithms_in_python_equal_those_in_rust(told):
    assert [rank["in_python"] for rank in told] == [(True, True, True, True)] * 2


def test_hooks_train_and_refuse_what_works_on_parameters(tmp_path):
    for rank in spawn(3, programs.hooks, str(tmp_path), timeout=LIMIT):
        assert "DataParallel" in rank.pop("local-sgd")
        assert "no algorithm `magic`" in rank.pop("magic")
        assert len(rank) == 3
        assert all(accuracy > 0.9 and identical for accuracy, identical in rank.values()), rank


@pytest.mark.parametrize("part", range(4))
def test_every_algorithm_trains_the_digits(part):
    names = [name for name, *_ in _native.algorithms()][part::4]
    assert len(names) >= 10
    for rank in spawn(4, programs.every_algorithm, names, 16, timeout=LIMIT):
        failed = {name: outcome for name, outcome in rank.items() if outcome[0] < 0.85}
        assert not failed
        assert all(identical for _, identical, promised in rank.values() if promised), rank


def test_a_rank_that_dies_is_named_and_nothing_hangs():
    first, second, third = outcomes_of(3, programs.killed, timeout=LIMIT)
    assert (first.value, third.value) == (1, 1)
    assert (first.exitcode, second.exitcode, third.exitcode) == (None, -9, None)
