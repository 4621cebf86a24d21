"""Unusual training loops: their results are right, or they are refused with a remedy."""

import pytest

from hexagram.testing import spawn

torch = pytest.importorskip("torch")
import loop_programs as programs  # noqa: E402 (it imports torch)


@pytest.fixture(scope="module")
def told():
    """The results of the programs of two ranks, by name: on rank 0, and on rank 1."""
    # Generous, as only a hang takes this long, even on a busy machine.
    return spawn(2, programs.one_after_another, timeout=540, deadline=240)


def test_looking_at_the_number_of_steps_changes_nothing(told):
    assert [rank["watched"] for rank in told] == [([0, 0, 1, 1, 1, 2, 2, 2, 3], [True] * 3)] * 2


def test_a_step_of_several_optimizers_ends_with_the_last_and_none_is_lost():
    assert programs.by_turns() == ([0, 1, 2], [True] * 3)


def test_a_pass_inside_of_the_pass_is_refused_if_it_would_end_it():
    text, is_right = programs.checkpointed()
    assert text is not None and "use_reentrant=False" in text
    assert is_right


def test_a_backward_pass_that_failed_is_told_here_and_to_the_others(told):
    (texts, *_), (_, culprit, cause) = (rank["fails"] for rank in told)
    assert len(texts) == 4
    for text in texts:
        assert text is not None and "left by an exception" in text and "checkpoint" in text
    assert culprit == 0 and "never finished" in cause


def test_one_data_parallel_at_a_time_and_none_leaves_hooks():
    outcome = programs.wrapped_again()
    for name, result in outcome.items():
        if name.startswith("a second one"):
            assert "`0.weight`" in result and "close" in result, name
        elif name.startswith("a closed one"):
            assert "was closed" in result, name
        else:
            assert result is True, name
    assert len(outcome) == 11


def test_parameters_in_one_memory_are_refused_where_they_would_be_parted():
    texts, are_tied = programs.untied()
    assert len(texts) == 2
    for text in texts:
        assert text is not None and "`0.weight`" in text and "`1.weight`" in text
    assert are_tied
