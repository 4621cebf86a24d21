"""What stands on torch.distributed gives over hexagram what it gives over Gloo: DDP, FSDP, DTensor, checkpoints…"""

import pytest

pytest.importorskip("torch")

from torch_programs import ALL, BEYOND_GLOO, run_all  # noqa: E402
from torch_ranks import run  # noqa: E402


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict]:
    """Returns, for each of two ranks, what every program returned over each backend."""
    return run(None, 2, run_all, str(tmp_path_factory.mktemp("stores")), seconds=300)


def close(left, right) -> bool:
    """Returns whether two nests of lists hold the same, numbers up to rounding."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(close(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, float) and isinstance(right, float):
        return left == pytest.approx(right, rel=1e-4, abs=1e-6)
    return left == right


@pytest.mark.parametrize("program", [program.__name__ for program in ALL])
def test_equals_gloo(program, results):
    for rank in results:
        assert close(rank["hexagram"][program], rank["gloo"][program])
        assert rank["hexagram"][program] == results[0]["hexagram"][program]


def test_what_gloo_refuses(results):
    for rank in results:
        assert rank["hexagram"]["beyond_gloo"] == BEYOND_GLOO
