"""What once gave wrong numbers without a word: each is right now, or refused by the name of what is wrong."""

import pytest

from hexagram.testing import spawn

torch = pytest.importorskip("torch")
import silent_programs as programs  # noqa: E402 (it imports torch)


@pytest.fixture(scope="module")
def told():
    """What each program of two ranks returned, by its name: on rank 0, and on rank 1."""
    return spawn(2, programs.one_after_another, timeout=540, deadline=120)


def test_an_overflow_leaves_nothing_to_step_with_on_any_rank(told):
    for rank in told:
        assert len(rank["overflows"]) == 16
        for name, (left, is_as_without, is_counted_right) in rank["overflows"].items():
            assert left == [True, True, True], name
            assert is_as_without and is_counted_right, name


def test_steps_that_are_left_out_are_not_counted(told):
    for rank in told:
        for name, (is_as_without, steps) in rank["gaps"].items():
            assert is_as_without, name
            # Algorithms that work on parameters count it, since other ranks may have made theirs.
            assert steps == (5 if "local-sgd" in name else 4), name


def test_parameters_that_get_other_memory_are_taken_up(told):
    for rank in told:
        assert len(rank["moves"]) == 5 * 3 + 4 * 2 + 1
        assert all(rank["moves"].values()), rank["moves"]


def test_a_model_that_is_not_what_it_was_is_refused_by_name_before_anything_is_sent(told):
    for rank in told:
        assert len(rank["refusals"]) == len(programs.REFUSED) * 4
        for name, (text, sent) in rank["refusals"].items():
            named = programs.REFUSED[name.split()[0]][1]
            assert text is not None and text.startswith("UsageError") and named in text, (name, text)
            assert sent == 0, name


def test_the_engine_s_optimizer_steps_with_the_gradients_that_the_loop_leaves(told):
    for rank in told:
        assert all(rank["gradients"].values()), rank["gradients"]


def test_a_layer_that_no_rank_uses_is_left_as_it_is(told):
    for rank in told:
        for name, seen in rank["unused"].items():
            assert seen == [(False, True, True)] + [(True, True, False)] * 3, name
