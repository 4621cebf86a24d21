"""Parameter groups of engine optimizers, like those of PyTorch, with their state; and unsupported options."""

import pytest

from hexagram.testing import spawn

torch = pytest.importorskip("torch")
import group_programs as programs  # noqa: E402 (it imports torch)


@pytest.fixture(scope="module")
def told():
    """The results of the programs of two ranks, by name: on rank 0, and on rank 1."""
    return spawn(2, programs.one_after_another, timeout=540, deadline=120)


def test_groups_step_as_pytorch_s_do(told):
    for rank in told:
        for name, apart in rank["as_pytorch"].items():
            assert apart < 1e-6, name


def test_the_state_of_an_optimizer_is_saved_and_loaded(told):
    for rank in told:
        for name, (goes_on, slots, parameters, steps) in rank["states"].items():
            assert goes_on and parameters == 4 and steps == {2}, name
            assert slots[-1] == "step" and (len(slots) > 1 or name == "sgd"), name


def test_what_cannot_be_followed_is_refused_by_name(told):
    parts = {
        "added": "name groups there",
        "foreign, empty": "0 of 4 parameters",
        "no state": "is not an optimizer's state",
        "foreign": "`exp_avg`",
        "betas": "`betas`",
        "decay": "weight_decay 0.5",
        "not the model's": "does not train",
        "momentum": "`momentum`",
        "negative": "`lr`",
        "no group": "groups has 5",
        "PyTorch's": "to itself",
    }
    for rank in told:
        assert rank["refused"].keys() == parts.keys()
        for name, part in parts.items():
            text = rank["refused"][name]
            assert text is not None and "UsageError" in text and part in text, (name, text)


@pytest.mark.parametrize("kind", ["torch", "engine"])
def test_rates_of_groups_that_part_are_an_error_with_both(kind):
    texts = spawn(2, programs.of_groups, kind, timeout=300, deadline=60)
    assert any(text.startswith("Mismatch") and "rate 0.5" in text and "rate 0.25" in text for text in texts), texts
