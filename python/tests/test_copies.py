"""Copies of a model under the engine, as with DDP; and hooks under DDP, with errors for unsupported parts."""

import pytest

from hexagram.testing import spawn

torch = pytest.importorskip("torch")
import copy_programs as programs  # noqa: E402 (it imports torch)


@pytest.fixture(scope="module")
def told():
    """The results of the programs of two ranks, by name: on rank 0, and on rank 1."""
    return spawn(2, programs.one_after_another, timeout=540, deadline=120)


def test_copies_are_the_model_to_evaluate(told):
    for rank in told:
        for name, (alike, names, refused, is_apart, size) in rank["copies"].items():
            assert all(alike) and all(names) and is_apart, name
            assert all("copy" in text and "another DataParallel" in text for text in refused), refused
            assert size < 10_000, "only the model's own memory"


def test_hooks_that_lack_the_learning_rate_say_so_when_they_are_made(told):
    for rank in told:
        for name in ("powersgd(rank=1)", "topk-ef(fraction=5%)", "dgc", "demo"):
            text = rank["hooks"][name]
            assert text is not None and "optimizer=" in text and "learning_rate=" in text, text
            assert rank["hooks"][f"{name} with a rate"] is None
            text = rank["hooks"][f"{name} in the engine"]
            assert text is not None and "optimizer=" in text and "learning_rate=" in text, text


def test_complex_gradients_are_carried_and_sparse_ones_named(told):
    for rank in told:
        assert rank["hooks"].get("complex", [True, True]) == [True, True]
        assert rank["hooks"]["unused"], "DDP leaves it as it is"
        text = rank["hooks"]["sparse"]
        assert text is not None and "sparse=True" in text and "[10, 4]" in text, text


def test_an_overflow_under_a_hook_is_left_to_the_scaler_of_every_rank(told):
    for rank in told:
        for algorithm in ("bytegrad", "topk-ef(fraction=50%)", "powersgd(rank=1, start=0)"):
            assert rank["hooks"][f"overflow {algorithm}"] == ([True, False, True, True], 2.0, True), algorithm
