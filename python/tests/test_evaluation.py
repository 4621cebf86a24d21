"""Evaluation of the mean of replicas: what may be asked meanwhile, and how it ends early."""

import pytest

pytest.importorskip("torch")
import evaluation_programs as programs  # noqa: E402 (it imports torch)


def test_what_is_asked_of_the_engine_meanwhile_is_refused_and_training_goes_on():
    told, is_evaluated, goes_on = programs.asked_meanwhile()
    assert len(told) == 9
    for name, text in told.items():
        assert text is not None and "evaluating the mean" in text and "torch.no_grad()" in text, (name, text)
    assert is_evaluated and goes_on
