"""Former silent errors in numbers: each is right now, or refused with the name of the cause."""

import pytest

from hexagram.testing import spawn

torch = pytest.importorskip("torch")
import silent_programs as programs  # noqa: E402 (it imports torch)


@pytest.fixture(scope="module")
def told():
    """The results of the programs of two ranks, by name: on rank 0, and on rank 1."""
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
            # Algorithms that work on parameters count it, since other ranks may have made a step.
            assert steps == (5 if "local-sgd" in name else 4), name


def test_parameters_that_get_other_memory_are_taken_up(told):
    for rank in told:
        assert len(rank["moves"]) == 5 * 3 + 4 * 2 + 1
        assert all(rank["moves"].values()), rank["moves"]


def test_gradients_that_get_other_memory_are_synchronized(told):
    for rank in told:
        assert len(rank["conversions"]) == 3 * len(programs.CONVERSIONS)
        for name, text in rank["conversions"].items():
            assert text is None, (name, text)


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


def test_buffers_are_averaged_with_the_parameters(told):
    for rank in told:
        for name, (seen, is_put_back, is_averaged, is_mean, frozen, parted) in rank["buffers"].items():
            assert seen["in_float"] == seen["in_half"] == seen["in_double"] == seen["float8"] == [1.5], (name, seen)
            assert seen["complex"] == [1.5 + 2j] and seen["gaps"] == [0.5, 2.5], (name, seen)
            assert seen["integer"] == seen["unsigned"] == [1], (name, seen)
            assert is_put_back and is_averaged and is_mean, name
            assert frozen == [0.0, 0.0], "rank 0's, as under DDP"
            assert parted is not None and "rank 1" in parted, (name, parted)


def test_replicas_that_have_parted_are_an_error_by_name(told):
    for rank in told:
        for name, texts in rank["parted"].items():
            for text in texts:
                assert text is not None and "`2.weight` of rank 1" in text, (name, text)


def test_an_overflow_under_a_codec_is_left_to_the_scaler_of_every_rank(told):
    for rank in told:
        assert len(rank["encoded"]) == len(programs.ENCODED) * 2
        for name, (moved, steps, scale, is_finite, refused) in rank["encoded"].items():
            assert moved == [True, False, True, True] and is_finite, (name, moved)
            assert steps == 3 and scale == 2.0, (name, steps, scale)
            assert refused is not None and refused.startswith("NotFinite") and "`0.weight`" in refused, (name, refused)


@pytest.mark.parametrize(("kind", "algorithm"), [("sgd", "gradient-allreduce"), ("the engine's", "bytegrad")])
def test_learning_rates_that_part_are_an_error_with_both(kind, algorithm):
    texts = spawn(2, programs.rates, kind, algorithm, timeout=300, deadline=60)
    assert all(texts), texts
    assert any(text.startswith("Mismatch") and "rate 0.5" in text and "rate 0.25" in text for text in texts), texts
