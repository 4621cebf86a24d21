"""Refusals by training: the error names the mistake and a remedy, on all ranks, before anything changes."""

import pytest

from hexagram.testing import spawn

torch = pytest.importorskip("torch")
import refusal_programs as programs  # noqa: E402 (it imports torch)


@pytest.fixture(scope="module")
def told():
    """The results of the programs of two ranks, by name: on rank 0, and on rank 1."""
    # Generous, as only a hang takes this long, even on a busy machine.
    return spawn(2, programs.one_after_another, timeout=540, deadline=240)


def test_values_that_an_option_does_not_take_are_refused_by_its_name(told):
    for rank in told:
        for name, text in rank["of_kinds"]:
            assert text is not None and text.startswith(f"{name} is "), (name, text)
            assert "; " in text


def test_learning_rates_that_differ_are_refused_with_both(told):
    for rank in told:
        (text,), _ = rank["by_rates"]
        assert "the option `learning_rate` is " in text and "0.25" in text and "0.5" in text, text


def test_the_learning_rate_reaches_an_algorithm_without_an_optimizer(told):
    assert [rank["by_rates"][1] for rank in told] == [[0.25]] * 2


def test_models_that_cannot_be_trained_are_refused_by_the_name_of_what_cannot(told):
    for rank in told:
        frozen, sparse, buffered, elsewhere, bare = rank["of_models"]
        assert "no parameter to train" in frozen
        assert "`weight`" in sparse and "sparse_csr" in sparse and "to_dense()" in sparse
        assert "`mask`" in buffered and "sparse_coo" in buffered
        assert "`mask`" in elsewhere and "on meta" in elsewhere and "on the CPU" in elsewhere
        assert "on meta" in bare and ".cpu()" in bare


def test_tensors_with_gaps_are_refused_before_anything_is_sent(told):
    for rank in told:
        texts, right = rank["in_place"]
        assert right == [0.5] * 3
        expected = (
            ["tensor.contiguous()"] * 6 + ["complex64"] * 2 + ["sparse_coo"] * 2 + ["sparse_csr"] * 2 + ["uint16"] * 2
        )
        assert len(texts) == len(expected)
        for text, part in zip(texts, expected, strict=True):
            assert text is not None and part in text, text


def test_a_trace_that_was_not_begun_is_not_collected(told):
    for number, rank in enumerate(told):
        texts, is_there = rank["of_traces"]
        assert all("begin the trace" in text for text in texts), texts
        assert is_there == (number == 0)


def test_broken_checkpoints_are_refused_on_all_ranks_and_change_nothing(told):
    for number, rank in enumerate(told):
        outcomes, goes_on = rank["checkpoints"]
        assert len(outcomes) == len(programs.BROKEN) + 4
        for name, (text, is_unchanged) in outcomes.items():
            assert text is not None and is_unchanged, (name, text)
            assert (number == 1 or name.startswith("of ")) or text.startswith("rank 1 failed: "), (name, text)
        assert "`0.weight`" in outcomes["of another model"][0]
        assert "local-sgd" in outcomes["of another algorithm"][0]
        assert "in Python" in outcomes["of one in Python"][0]
        assert "checksum" in outcomes["fewer tensors"][0] and "checksum" in outcomes["another bit"][0]
        assert goes_on


def test_the_engine_s_learning_rate_is_restored_as_pytorch_s(told):
    assert [rank["rates_resume"] for rank in told] == [[0.125, 0.125]] * 2


def test_a_model_trains_in_the_world_that_was_joined(told):
    assert [rank["without_world"] for rank in told] == [(True, True)] * 2


def test_the_end_of_an_engine_has_a_deadline():
    ((text, seconds),) = programs.closed_within_an_evaluation()
    assert "the engine has not ended" in text and seconds == pytest.approx(0.4)
