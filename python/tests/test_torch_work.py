"""A PyTorch work has its result when it reports its end, with or without a waiting caller."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch_ranks import run  # noqa: E402

from hexagram import UsageError  # noqa: E402
from hexagram.torch.process_group import Operations  # noqa: E402
from hexagram.torch.work import Operation, Pending  # noqa: E402


class Ended:
    """A native work that has ended; the test calls its callbacks."""

    def __init__(self, error: Exception | None = None):
        self.error = error
        self.callbacks = []

    def is_done(self) -> bool:
        return True

    def wait(self, seconds: float | None = None) -> bool:
        if self.error is not None:
            raise self.error
        return True

    def on_done(self, callback) -> None:
        self.callbacks.append(callback)


def test_a_completed_work_has_copied_its_result():
    copied = []
    work = Pending(Operation([Ended()], [lambda: copied.append(1)], [0]), [])
    assert work.is_completed() and copied == [1]
    # Once.
    assert work.is_completed() and work.wait() and copied == [1]
    assert work.is_success() and work.exception() is None


def test_a_completed_work_that_failed_says_why():
    error = UsageError("cannot be")
    for natives, finishes in (([Ended(error)], []), ([Ended()], [lambda: fail(error)])):
        work = Pending(Operation(natives, finishes, [0]), [])
        assert work.is_completed() and not work.is_success() and work.exception() is error
        with pytest.raises(UsageError, match="cannot be"):
            work.wait()


def fail(error: Exception) -> None:
    """Raises an error."""
    raise error


def test_a_message_that_nobody_waits_for_arrives():
    copied, native = [], Ended()
    group = SimpleNamespace(backend_name="hexagram", ranks=[0, 1])
    Operations.post(group, "recv", [], lambda: native, lambda: copied.append(1))
    for callback in native.callbacks:
        callback(native)
    assert copied == [1]


def test_a_failed_operation_without_a_wait_prints_nothing():
    error, copied = UsageError("cannot be"), []
    native = Ended(error)
    operation = Operation([native], [lambda: copied.append(1)], [0])
    operation.finish_alone()
    for callback in native.callbacks:
        callback(native)
    with pytest.raises(UsageError, match="cannot be"):
        Pending(operation, []).wait()
    assert len(native.callbacks) == 1 and not copied


def polled(rank: int) -> list[list[float]]:
    """Receives in tensors with gaps, and only polls for the end."""
    import torch.distributed as dist

    sum_of, message = torch.full((3, 4), float(rank + 1)).t(), torch.zeros(4, 3).t()
    works = [dist.all_reduce(sum_of, async_op=True), dist.isend(torch.full((3, 4), float(rank)), 1 - rank)]
    works.append(dist.irecv(message, 1 - rank))
    seen = []
    for work, tensor in zip(works[::2], (sum_of, message), strict=True):
        while not work.is_completed():
            pass
        seen.append(tensor.flatten().tolist())
    works[1].wait()
    return seen


def test_what_was_received_is_there_when_a_work_is_completed():
    assert run("hexagram", 2, polled) == [[[3.0] * 12, [1.0 - rank] * 12] for rank in range(2)]


def inferred(rank: int) -> list[list]:
    """Receives in tensors of ``torch.inference_mode``, with gaps, inside and outside of that mode on this thread."""
    import torch.distributed as dist

    with torch.inference_mode():
        sums, parts = torch.ones(2, 2)[:, 0], [torch.zeros(2, 2)[:, 0] for _ in range(2)]
        sparse = torch.sparse_coo_tensor([[rank]], [1.0], (2,))
        works = [dist.all_reduce(sums, async_op=True), dist.all_gather(parts, torch.ones(2) * rank, async_op=True)]
        dist.all_reduce(sparse)
    for work in works:
        work.wait()
    later = sums.t()
    dist.all_reduce(later)
    # Neither is written to by autograd.
    assert sums.is_inference() and not torch.is_inference_mode_enabled()
    return [later.tolist(), *(part.tolist() for part in parts), sparse.to_dense().tolist()]


def test_tensors_of_inference_mode_receive_outside_of_it():
    assert run("hexagram", 2, inferred) == [[[4.0] * 2, [0.0] * 2, [1.0] * 2, [1.0] * 2]] * 2


def averaged(rank: int) -> list:
    """Computes means of integers with each reducing operation; those of 8 bits would overflow as sums."""
    import torch.distributed as dist

    mean = dist.ReduceOp.AVG
    bytes_of, strided = (
        torch.tensor([200, 201 + rank], dtype=torch.uint8),
        torch.arange(4).view(2, 2).t()[1] * -1 - rank,
    )
    dist.all_reduce(bytes_of, op=mean)
    dist.all_reduce(strided, op=mean, async_op=True).wait()
    root, part, uneven = (
        torch.tensor([3, 4 + rank]),
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(1 + rank, dtype=torch.int8),
    )
    dist.reduce(root, 0, op=mean)
    dist.reduce_scatter_tensor(part, torch.tensor([5, 7], dtype=torch.int32) + 4 * rank, op=mean)
    dist.reduce_scatter(uneven, [torch.full((1 + of,), 100 + of, dtype=torch.int8) for of in range(2)], op=mean)
    return [bytes_of.tolist(), strided.tolist(), root.tolist() if rank == 0 else None, part.tolist(), uneven.tolist()]


def test_means_of_integers_have_no_fraction():
    # Towards zero: -1.5 becomes -1.
    both = [[200, 201], [-1, -3]]
    assert run("hexagram", 2, averaged) == [[*both, [3, 4], [7], [100]], [*both, None, [9], [101, 101]]]
