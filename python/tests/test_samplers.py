"""Samplers: the orders of PyTorch, balanced steps, and resumption of a stopped run, on other ranks."""

import itertools
import pickle
import random

import pytest

from hexagram import (
    CostBalancedSampler,
    DistributedSampler,
    DistributedWeightedRandomSampler,
    ElasticSampler,
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
    UsageError,
)
from hexagram.testing import spawn


def test_samplers_have_pytorch_s_order():
    data = pytest.importorskip("torch.utils.data")
    # With drop_last, 3 ranks draw nothing from 2 samples; from 0 samples, they never draw anything.
    for length in (11, 12, 2, 0):
        for shuffle, seed, drop_last in ((True, 5, False), (False, 0, True), (True, -1, True)):
            for rank in range(3):
                # By position: dataset, num_replicas, rank, shuffle, seed, drop_last.
                arguments = range(length), 3, rank, shuffle, seed, drop_last
                theirs, ours = data.DistributedSampler(*arguments), DistributedSampler(*arguments)
                for epoch in range(3):
                    theirs.set_epoch(epoch)
                    ours.set_epoch(epoch)
                    assert list(ours) == list(theirs) and len(ours) == len(theirs), arguments
                for name in (
                    "num_samples",
                    "total_size",
                    "num_replicas",
                    "rank",
                    "epoch",
                    "shuffle",
                    "seed",
                    "drop_last",
                ):
                    assert getattr(ours, name) == getattr(theirs, name), name
    ours = DistributedSampler(range(11), 3, 2)
    loader = data.DataLoader(list(range(11)), batch_size=2, sampler=ours)
    assert [index for batch in loader for index in batch.tolist()] == list(ours)


def test_samplers_resume_on_other_ranks():
    first = [DistributedSampler(range(12), 2, rank, seed=1) for rank in range(2)]
    state = first[0].state_dict(drawn=3)
    drawn = [index for sampler in first for index in list(sampler)[:3]]
    left = [index for rank in range(3) for index in DistributedSampler(range(12), 3, rank, seed=1).resume(state)]
    assert sorted(drawn + left) == list(range(12))
    with pytest.raises(ValueError, match="a different order"):
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
    assert state["epoch"] == 1 and state["position"] == 18 and state["parts"] == []
    rest = [index for rank in range(3) for batch in sampler(3, rank).resume(state) for index in batch]
    assert sorted(seen + rest) == list(range(48))


def test_a_state_of_an_earlier_version_resumes():
    sampler = DistributedSampler(range(20), num_replicas=2, rank=0)
    state = sampler.state_dict(3)
    old = {name: state[name] for name in ("epoch", "position", "fingerprint")}
    assert list(sampler.resume(old)) == list(sampler)[3:]


def test_a_damaged_state_is_refused():
    sampler = LoadBalancingDistributedSampler(range(20), lambda size: size, num_replicas=2, rank=0)
    state = sampler.state_dict(3)
    for damage in (
        {"parts": [(10**12, 5)]},
        {"parts": [(2**64 - 1, 5)]},
        {"parts": [(0, 5)]},
        {"parts": [(4, 7)]},
        {"parts": [(4, 4), (3, 2)]},
        {"grouping": 0},
    ):
        with pytest.raises(ValueError, match="the state of the loader is damaged"):
            sampler.load_state_dict(state | damage | {"epoch": 3})
        assert sampler.epoch == 0
    assert list(sampler.resume(state)) == list(sampler)[3:]


def test_balanced_samples_come_once_on_changing_ranks():
    costs = [float(index * 37 % 50) for index in range(96)]

    def balanced(ranks, rank):
        return LoadBalancingDistributedSampler(costs, float, ranks, rank, seed=3, random_level=0.2)

    def steps(ranks, rank):
        return CostBalancedSampler(range(96), costs, ranks, rank, global_batch=2 * ranks)

    def batches(ranks, rank):
        return LoadBalancingDistributedBatchSampler(balanced(ranks, rank), lambda samples: [[one] for one in samples])

    for sampler in (balanced, steps, batches):
        state, seen = None, []
        for ranks, draws in ((4, 3), (3, 4), (6, 2), (4, 96)):
            states = []
            for rank in range(ranks):
                one = sampler(ranks, rank)
                drawing = iter(one) if state is None else one.resume(state)
                for draw in itertools.islice(drawing, draws):
                    seen += [draw] if isinstance(draw, int) else draw
                states.append(one.state_dict())
            assert all(other == states[0] for other in states)
            state = pickle.loads(pickle.dumps(states[0]))
        assert sorted(seen) == list(range(96)), sampler
        again = sampler(4, 0)
        again.load_state_dict(state)
        assert not list(again) and list(again) == list(sampler(4, 0)), "the next iteration is whole"


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


def known(world):
    return list(DistributedSampler(range(6), shuffle=False)), list(DistributedSampler(range(6), rank=0, shuffle=False))


def test_rank_and_size_are_those_of_the_world():
    assert spawn(2, known) == [([0, 2, 4], [0, 2, 4]), ([1, 3, 5], [0, 2, 4])]
    for sampler in (lambda: DistributedSampler(range(4)), lambda: ElasticSampler(range(4), 1, global_batch=2)):
        with pytest.raises(UsageError, match="neither a process group nor a world"):
            sampler()


def in_group(world):
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    drawn = list(DistributedSampler(range(3), shuffle=False))
    dist.destroy_process_group()
    return drawn


def test_a_process_group_precedes_the_world():
    pytest.importorskip("torch.distributed")
    assert spawn(2, in_group) == [[0, 1, 2]] * 2


def test_the_epoch_that_is_resumed_is_not_begun_anew():
    sampler = DistributedSampler(range(12), 2, 0)
    sampler.set_epoch(3)
    draws = iter(sampler)
    seen = [next(draws) for _ in range(2)]
    state = sampler.state_dict()
    assert state == draws.state_dict() and state["epoch"] == 3 and state["position"] == 4
    resumed = DistributedSampler(range(12), 2, 0)
    resumed.load_state_dict(state)
    for epoch in (3, 4):
        resumed.set_epoch(epoch)
        sampler.set_epoch(epoch)
        assert list(resumed) == list(sampler)[len(seen) if epoch == 3 else 0 :]


def test_a_stateful_loader_goes_on_in_the_middle():
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    data = list(range(40))

    def loader(workers):
        sampler = DistributedSampler(data, 2, 1, seed=4)
        batches = ElasticSampler(data, 2, 1, global_batch=6, seed=4)
        return (
            stateful.StatefulDataLoader(data, batch_size=3, sampler=sampler, num_workers=workers),
            stateful.StatefulDataLoader(data, batch_sampler=batches, num_workers=workers),
        )

    for workers in (0, 2):
        for first, second in zip(loader(workers), loader(workers), strict=True):
            expected = [batch.tolist() for batch in first]
            batches = iter(first)
            seen = [next(batches).tolist() for _ in range(3)]
            second.load_state_dict(first.state_dict())
            assert seen + [batch.tolist() for batch in second] == expected
            assert [batch.tolist() for batch in second] == expected, "the epoch after it is whole"


def test_load_balanced_batches_are_as_many_on_all_ranks():
    # Bagua's own test of this sampler, with batches of 1, 2 and 3 samples.
    replicas, batches = 2, 3
    length = sum(size + 1 for size in range(batches)) * replicas
    complexities = random.Random(0).sample(range(length), length)

    def batch_fn(samples):
        start = 0
        for size in range(1, batches + 1):
            yield samples[start : start + size]
            start += size

    drawn = []
    for rank in range(replicas):
        sampler = LoadBalancingDistributedSampler(
            complexities, complexity_fn=lambda x: x, num_replicas=replicas, rank=rank, shuffle=True, random_level=0.5
        )
        of_rank = LoadBalancingDistributedBatchSampler(sampler, batch_fn=batch_fn)
        assert len(of_rank) == batches
        for epoch in range(2):
            sampler.set_epoch(epoch)
            of_rank.set_epoch(epoch)
            assert [len(batch) for batch in of_rank] == [1, 2, 3]
            assert [index for batch in of_rank for index in batch] == list(sampler)
        drawn += [index for batch in of_rank for index in batch]
    assert sorted(drawn) == list(range(length))

    def fails(samples):
        raise KeyError("batches")

    with pytest.raises(KeyError, match="batches"):
        LoadBalancingDistributedBatchSampler(sampler, fails)

    is_broken = False

    def fails_later(samples):
        return fails(samples) if is_broken else [samples]

    of_rank = LoadBalancingDistributedBatchSampler(sampler, fails_later)
    draws = iter(of_rank)
    later = draws.state_dict() | {"epoch": 7}
    is_broken = True
    for goes_on in (of_rank, draws):
        with pytest.raises(KeyError, match="batches"):
            goes_on.load_state_dict(later)
        later["epoch"] += 1
        with pytest.raises(ValueError, match="a different order"):
            goes_on.load_state_dict(later | {"fingerprint": 1})


def test_weighted_samples_are_those_of_one_rank_shared_out():
    torch = pytest.importorskip("torch")
    weights = [0.0, 1.0, 2.0, 5.0]
    theirs = torch.multinomial(torch.tensor(weights, dtype=torch.double), 12, True, generator=torch.manual_seed(7))
    ranks = [list(DistributedWeightedRandomSampler(weights, 12, 3, rank, seed=7)) for rank in range(3)]
    assert [index for step in zip(*ranks, strict=True) for index in step] == theirs.tolist()
    assert [len(DistributedWeightedRandomSampler(weights, 10, 3, 2, drop_last=drop)) for drop in (True, False)] == [
        3,
        4,
    ]
    with pytest.raises(UsageError, match="weights"):
        DistributedWeightedRandomSampler([1.0, -1.0], 2, 1, 0)


def test_options_that_cannot_be():
    for made, words in [
        (lambda: DistributedSampler(range(4), 2, 2), "rank"),
        (lambda: DistributedSampler(range(4), 2, -1), "-1 cannot be used as a rank"),
        (lambda: LoadBalancingDistributedSampler([1, 2], float, 0, 0), "number of ranks"),
        (lambda: ElasticSampler(range(4), 8, 0, global_batch=2), "4|8"),
        (lambda: ElasticSampler(range(4), 1, 0, global_batch=2, tail="cut"), "drop, pad or exact"),
        (lambda: CostBalancedSampler(range(4), [1, 1, 1, 1], 2, 0, global_batch=2, speeds=[1]), "speeds"),
    ]:
        with pytest.raises(UsageError, match=words):
            made()
