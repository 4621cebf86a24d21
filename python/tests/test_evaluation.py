"""Evaluation of the mean of replicas: the calls allowed meanwhile, and its early end."""

import pytest

from hexagram.testing import spawn

pytest.importorskip("torch")
import evaluation_programs as programs  # noqa: E402 (it imports torch)

#: Limit for all ranks of a test, in seconds: generous, as only a hang takes this long.
LIMIT = 540


def test_what_is_asked_of_the_engine_meanwhile_is_refused_and_training_goes_on():
    told, is_evaluated, goes_on = programs.asked_meanwhile()
    assert len(told) == 9
    for name, text in told.items():
        assert text is not None and "evaluating the mean" in text and "torch.no_grad()" in text, (name, text)
    assert is_evaluated and goes_on


def test_ctrl_c_ends_the_wait_for_the_mean_and_replicas_are_put_back():
    assert spawn(2, programs.interrupted, timeout=LIMIT, deadline=240) == [(True, True)] * 2
