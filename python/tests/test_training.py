"""Training from Python: with the engine, under DDP with hooks, and with algorithms in Python.

Two ranks run most programs one after another, as starting Python and torch takes longer than all of them.
"""

import json
import os
from pathlib import Path

import pytest

from hexagram import _native
from hexagram.testing import outcomes_of, spawn

torch = pytest.importorskip("torch")
import training_programs as programs  # noqa: E402 (it imports torch)

#: Limit for all ranks of a test, in seconds: generous, as only a hang takes this long.
LIMIT = 540

#: First losses of the Rust program, means over 4 ranks: written by python/bench/algorithms.py.
LOSSES = json.loads((Path(__file__).parent / "digits_losses.json").read_text())


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The results of the programs of two ranks, by name: on rank 0, and on rank 1."""
    return spawn(2, programs.one_after_another, str(tmp_path_factory.mktemp("ranks")), timeout=LIMIT)


def test_engine_and_hook_equal_ddp_on_gloo_bit_for_bit(told):
    for rank in told:
        assert rank["beside_ddp"] == [True] * 10


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
        assert outcomes["rust"] == outcomes["python"] == (4, 2.0**9, True, True)
        assert outcomes["python as rust"]
        assert outcomes["loss scale"] == ([False, True, False], 2, True, True)
        assert outcomes["bfloat16"] and outcomes["mean of bfloat16"]


def test_clipping(told):
    for rank in told:
        norms, equal = rank["clipped"]
        assert norms == pytest.approx([0.1] * 12, rel=1e-4)
        assert equal == [True] * 3


def test_all_ranks_begin_with_rank_0_s_optimizer_state(told):
    # Three numbers of Adam per parameter, for four parameters, and one momentum.
    assert [rank["warm"] for rank in told] == [{"adam": (12, True, 0.01, True), "momentum": (4, True, 0.01, True)}] * 2


def test_what_cannot_be_is_refused_with_what_to_do(told):
    for rank, outcome in enumerate(rank["refused"] for rank in told):
        assert "bytegrad" in outcome["spelling"] and "`bytegrads`" in outcome["spelling"]
        assert "period" in outcome["option of an algorithm"]
        assert "no option clip" in outcome["option"] and "clip_norm" in outcome["option"]
        assert "'maybe'" in outcome["value"] and "zero" in outcome["value"]
        assert "different options" in outcome["algorithms"] and "sgp" in outcome["algorithms"]
        assert "LocalSgd(period=3)" in outcome["attributes"] and "LocalSgd(period=4)" in outcome["attributes"]
        assert "different models" in outcome["models"] and "0.weight" in outcome["models"]
        assert "rank 1" in outcome["optimizers"] and "rank 1" in outcome["groups"]
        assert ("Adagrad of 4, and rank 0 has SGD of 4" in outcome["optimizers"]) == (rank == 1)
        assert "Forward(period=3)" in outcome["forward hook"]
        assert len(outcome) == 10


def test_ranks_run_out_of_data_at_different_times(told):
    assert [rank["uneven"] for rank in told] == [[(6, True)] * 2] * 2


def test_parameters_follow_an_algorithm_that_exchanges_buffers(told):
    x = [0.0, 0.0]
    expected = []
    for _ in range(5):
        # Each rank steps from the mean, with the gradient at its old parameters.
        x = [sum(x) / 2 - 0.5 * (x[rank] - 4 * rank) for rank in range(2)]
        expected.append(x)
    assert [list(pair) for pair in zip(*(rank["gossiped"] for rank in told), strict=True)] == expected


def test_mean_switch_and_trace(told):
    outcomes = [rank["evaluated"] for rank in told]
    assert [outcome[:5] for outcome in outcomes] == [(True, True, True, "gradient-allreduce", 7)] * 2
    (report, events), nothing = (outcome[5] for outcome in outcomes)
    assert "slowest is rank" in report and events == ["step 5", "step 6"]
    assert nothing == (None, [])


def test_batch_normalization_over_all_ranks_equals_one_rank(told):
    alone = programs.normalized(None)
    for rank in told:
        pairs = zip(alone, rank["normalized"], strict=True)
        numbers = (tuple(torch.tensor(values, dtype=torch.float64) for values in pair) for pair in pairs)
        assert all(torch.allclose(*pair, rtol=0, atol=1e-9) for pair in numbers)


def test_algorithms_in_python_equal_those_in_rust(told):
    assert [rank["in_python"] for rank in told] == [(True, True, True, True)] * 2


def test_states_of_algorithms_in_python_are_regrouped(told):
    for rank, regrouped in enumerate(one["regrouped"] for one in told):
        count = len(regrouped["equal"][1])
        assert count > 1
        assert regrouped["equal"] == ({rank}, [None] * count)
        assert regrouped["smaller"] == ({1.5}, [[1, 2]] * count)
        assert regrouped["with a new rank"] == ({2.0}, [[2]] * count)
        assert regrouped["only new ranks"] == ({0.5}, [[0, 1]] * count)
        assert "no method `regroup`" in regrouped["WithoutRegroup"]
        assert "more than numbers" in regrouped["Tuples"]


def test_an_algorithm_in_rust_goes_on_after_one_in_python(told):
    spellings = ["LocalSgd(period=3)", "gradient-allreduce", "local-sgd(period=3)", "gradient-allreduce"]
    assert [rank["switched"] for rank in told] == [(spellings, True)] * 2


def test_hooks_train_and_refuse_what_works_on_parameters(tmp_path):
    for rank in spawn(3, programs.hooks, str(tmp_path), timeout=LIMIT):
        assert "DataParallel" in rank.pop("local-sgd")
        assert "unknown algorithm `magic`" in rank.pop("magic")
        assert len(rank) == 3
        assert all(accuracy > 0.9 and identical for accuracy, identical in rank.values()), rank


def test_a_hook_under_ddp_continues_from_its_state(tmp_path):
    for rank in spawn(3, programs.hook_states, str(tmp_path), timeout=LIMIT):
        assert len(rank) == 5 and all(rank.values()), rank
        assert any("is not the state of a hook" in text for text in rank)


def test_every_algorithm_s_losses_are_those_of_the_rust_program():
    known = {name: kind for name, kind, _ in _native.algorithms()}
    assert LOSSES.keys() == known.keys()
    for rank in spawn(4, programs.first_losses, list(known), 5, timeout=LIMIT):
        for name, (losses, as_promised) in rank.items():
            assert as_promised, name
            # Results of asynchronous algorithms depend on which rank is faster.
            expected = LOSSES[name][: 5 if " sync" in known[name] else 1]
            assert losses[: len(expected)] == pytest.approx(expected, rel=2e-4), name


@pytest.mark.skipif("HEXAGRAM_TEST_DEEP" not in os.environ, reason="takes minutes: python/test --deep")
@pytest.mark.parametrize("part", range(4))
def test_every_algorithm_trains_the_digits(part):
    names = [name for name, *_ in _native.algorithms()][part::4]
    assert len(names) >= 10
    for rank in spawn(4, programs.every_algorithm, names, 16, timeout=LIMIT):
        failed = {name: outcome for name, outcome in rank.items() if outcome[0] < 0.9 or not outcome[1]}
        assert not failed


def test_a_rank_that_dies_is_named_and_nothing_hangs():
    first, second, third = outcomes_of(3, programs.killed, timeout=LIMIT)
    assert (first.value, third.value) == (1, 1)
    assert (first.exitcode, second.exitcode, third.exitcode) == (None, -9, None)
