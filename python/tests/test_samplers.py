"""Samplers: PyTorch's orders, steps that are balanced, and going on where a run stopped, on other ranks."""

import pickle

import pytest

from hexagram import (
    CostBalancedSampler,
    DistributedSampler,
    ElasticSampler,
    LoadBalancingDistributedSampler,
    UsageError,
)


def test_samplers_have_pytorch_s_order():
    data = pytest.importorskip("torch.utils.data")
    for shuffle in (True, False):
        for rank in range(3):
            theirs = data.DistributedSampler(range(11), num_replicas=3, rank=rank, shuffle=shuffle, seed=5)
            ours = DistributedSampler(range(11), num_replicas=3, rank=rank, shuffle=shuffle, seed=5)
            for epoch in range(3):
                theirs.set_epoch(epoch)
                ours.set_epoch(epoch)
                assert list(ours) == list(theirs) and len(ours) == len(theirs)
    loader = data.DataLoader(list(range(11)), batch_size=2, sampler=ours)
    assert [index for batch in loader for index in batch.tolist()] == list(ours)


def test_samplers_resume_on_other_ranks():
    first = [DistributedSampler(range(12), 2, rank, seed=1) for rank in range(2)]
    state = first[0].state_dict(drawn=3)
    drawn = [index for sampler in first for index in list(sampler)[:3]]
    left = [index for rank in range(3) for index in DistributedSampler(range(12), 3, rank, seed=1).resume(state)]
    assert sorted(drawn + left) == list(range(12))
    with pytest.raises(ValueError, match="another order"):
        DistributedSampler(range(12), 3, 0, seed=2).resume(state)


def test_balanced_ranks_have_similar_samples():
    samplers = [LoadBalancingDistributedSampler([5.0, 1.0, 3.0, 7.0], float, 2, rank, shuffle=False) for rank in (0, 1)]
    assert [list(sampler) for sampler in samplers] == [[1, 0], [2, 3]]


def test_another_number_of_ranks_goes_on_with_what_was_left():
    def sampler(ranks, rank):
        return ElasticSampler(range(48), ranks, rank, global_batch=6, seed=3)

    first = [sampler(2, rank) for rank in range(2)]
    for one in first:
        one.set_epoch(1)
    seen = [index for one in first for batch in list(one)[:3] for index in batch]
    state = pickle.loads(pickle.dumps(first[0].state_dict(3)))
    assert state["epoch"] == 1 and state["position"] == 18 and len(state) == 3
    rest = [index for rank in range(3) for batch in sampler(3, rank).resume(state) for index in batch]
    assert sorted(seen + rest) == list(range(48))


def test_batches_go_to_pytorch_s_loader():
    data = pytest.importorskip("torch.utils.data")
    batches = ElasticSampler(range(10), 2, 1, global_batch=5)
    loader = data.DataLoader(list(range(10)), batch_sampler=batches)
    assert [batch.tolist() for batch in loader] == list(batches)


def test_cost_balanced_batches():
    costs = [1.0 + index % 7 for index in range(210)]
    ranks = [CostBalancedSampler(range(210), costs, 3, rank, global_batch=30, random_level=0) for rank in range(3)]
    for step in zip(*ranks, strict=True):
        loads = [sum(costs[sample] for sample in batch) for batch in step]
        assert max(loads) <= 1.1 * min(loads)
    by_function = CostBalancedSampler(range(210), lambda sample: costs[sample], 3, 0, global_batch=30, random_level=0)
    assert list(by_function) == list(ranks[0])
    slow = CostBalancedSampler(range(60), [1.0] * 60, 2, 0, global_batch=12, speeds=[1.0, 2.0])
    assert all(len(batch) == 4 for batch in slow)
    assert list(slow.resume(slow.state_dict(2))) == list(slow)[2:]


def test_options_that_cannot_be():
    for made, words in [
        (lambda: DistributedSampler(range(4), 2, 2), "rank"),
        (lambda: ElasticSampler(range(4), 8, 0, global_batch=2), "4|8"),
        (lambda: ElasticSampler(range(4), 1, 0, global_batch=2, tail="cut"), "drop, pad or exact"),
        (lambda: CostBalancedSampler(range(4), [1, 1, 1, 1], 2, 0, global_batch=2, speeds=[1]), "speeds"),
    ]:
        with pytest.raises(UsageError, match=words):
            made()
