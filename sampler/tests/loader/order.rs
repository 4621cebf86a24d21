//! The batches and their order.

use super::support::{epoch, numbers, options, uneven};
use hexagram_sampler::dataset::{Dataset, Fetch};
use hexagram_sampler::loader::{DataLoader, LoaderOptions};
use hexagram_sampler::{
    BatchSampler, DistributedOptions, DistributedSampler, Mersenne, SequentialSampler, randperm,
};
use std::hash::{DefaultHasher, Hash, Hasher};

#[test]
fn without_shuffling_samples_come_in_their_order() {
    for workers in 0..4 {
        let mut loader = DataLoader::new(numbers(10), options(4, workers)).unwrap();
        assert_eq!(loader.len(), Some(3));
        assert_eq!(epoch(&mut loader), [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
        let dropping = LoaderOptions { drop_last: true, ..options(4, workers) };
        let mut loader = DataLoader::new(numbers(10), dropping).unwrap();
        assert_eq!(loader.len(), Some(2));
        assert_eq!(epoch(&mut loader).concat(), (0..8).collect::<Vec<_>>());
    }
}

#[test]
fn shuffling_draws_the_permutation_of_seed_plus_epoch() {
    let shuffled = LoaderOptions { shuffle: true, seed: 5, ..options(7, 2) };
    let mut loader = DataLoader::new(numbers(50), shuffled).unwrap();
    for number in 0..3 {
        assert_eq!(epoch(&mut loader).concat(), randperm(50, &mut Mersenne::new(5 + number)));
    }
}

/// The hash of three epochs.
fn hash_of_order(workers: usize, prefetch: usize, persistent: bool) -> u64 {
    let given = LoaderOptions {
        shuffle: true,
        prefetch_factor: (workers > 0).then_some(prefetch),
        persistent_workers: persistent && workers > 0,
        ..options(3, workers)
    };
    let mut loader = DataLoader::new(uneven(500), given).unwrap();
    let mut hasher = DefaultHasher::new();
    (0..3).for_each(|_| epoch(&mut loader).hash(&mut hasher));
    hasher.finish()
}

#[test]
fn the_order_is_the_same_for_any_number_of_workers() {
    let alone = hash_of_order(0, 1, false);
    for workers in 1..=8 {
        for (prefetch, persistent) in [(1, false), (2, true), (5, false), (5, true)] {
            assert_eq!(
                hash_of_order(workers, prefetch, persistent),
                alone,
                "{workers} {prefetch} {persistent}"
            );
        }
    }
}

#[test]
fn out_of_order_every_batch_still_comes_once() {
    let given = LoaderOptions { in_order: false, persistent_workers: true, ..options(3, 4) };
    let mut loader = DataLoader::new(uneven(500), given).unwrap();
    for _ in 0..3 {
        let mut batches = epoch(&mut loader);
        batches.sort();
        assert_eq!(batches.concat(), (0..500).collect::<Vec<_>>());
    }
}

/// The first batch takes until the second has been handed out: only without an order can that end.
#[test]
fn out_of_order_a_slow_batch_holds_up_nobody() {
    let (release, released) = std::sync::mpsc::channel();
    let released = std::sync::Mutex::new(released);
    let load = move |index: usize, _: &Fetch<'_>| {
        if index == 0 {
            released.lock().unwrap().recv_timeout(super::support::PATIENCE)?;
        }
        Ok(index)
    };
    let dataset = super::support::Numbers { len: 8, load };
    let given = LoaderOptions { in_order: false, ..options(1, 2) };
    let mut loader = DataLoader::new(dataset, given).unwrap();
    let mut batches = loader.iter();
    let early: Vec<usize> = batches.by_ref().take(3).map(|batch| batch.unwrap()[0]).collect();
    assert_eq!(early, [1, 2, 3]);
    assert_eq!(batches.state().position, 0, "the first batch is still missing");
    release.send(()).unwrap();
    assert_eq!(batches.count(), 5);
}

#[test]
fn samplers_and_batch_samplers_set_the_order() {
    let sampler = DistributedSampler::new(DistributedOptions {
        len: 10,
        replicas: 2,
        rank: 1,
        shuffle: false,
        ..Default::default()
    });
    let given = LoaderOptions { sampler: Some(Box::new(sampler.unwrap())), ..options(2, 2) };
    let mut loader = DataLoader::new(numbers(10), given).unwrap();
    assert_eq!(epoch(&mut loader), [vec![1, 3], vec![5, 7], vec![9]]);

    let batches = BatchSampler::new(SequentialSampler::new(7).unwrap(), 3, true).unwrap();
    let given = LoaderOptions { batch_sampler: Some(Box::new(batches)), ..options(1, 2) };
    let mut loader = DataLoader::new(numbers(10), given).unwrap();
    assert_eq!(epoch(&mut loader), [vec![0, 1, 2], vec![3, 4, 5]]);
}

#[test]
fn a_loader_begins_with_the_epoch_of_its_sampler() {
    for workers in [0, 2] {
        let with = |epoch| {
            let share = DistributedOptions { len: 10, replicas: 2, rank: 1, epoch, ..Default::default() };
            let sampler = Some(Box::new(DistributedSampler::new(share).unwrap()) as Box<_>);
            DataLoader::new(numbers(10), LoaderOptions { sampler, ..options(2, workers) }).unwrap()
        };
        let mut from_the_seventh = with(7);
        let mut from_the_first = with(0);
        from_the_first.set_epoch(7);
        for number in 7..10 {
            assert_eq!(from_the_seventh.state().epoch, number);
            let expected = epoch(&mut with(number));
            assert_eq!(epoch(&mut from_the_seventh), expected, "epoch {number}");
            assert_eq!(epoch(&mut from_the_first), expected, "epoch {number}");
        }
    }
}

#[test]
fn without_batches_single_samples_come() {
    for workers in [0, 2] {
        let given = LoaderOptions { batch_size: None, ..options(1, workers) };
        let mut loader = DataLoader::unbatched(uneven(20), given).unwrap();
        assert_eq!(loader.iter().map(Result::unwrap).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    }
}

/// Random numbers of samples, in the order of samples.
fn augmentations(workers: usize, number: u64) -> Vec<u64> {
    let dataset = numbers(40).map(|index, fetch: &Fetch<'_>| Ok((index, fetch.generator().next_u64())));
    let given = LoaderOptions { shuffle: true, seed: 3, batch_size: None, ..options(1, workers) };
    let mut loader = DataLoader::unbatched(dataset, given).unwrap();
    loader.set_epoch(number);
    let mut drawn: Vec<_> = loader.iter().map(Result::unwrap).collect();
    drawn.sort_unstable();
    drawn.into_iter().map(|(_, random)| random).collect()
}

#[test]
fn augmentations_follow_the_sample_and_the_epoch_but_not_the_worker() {
    let first = augmentations(0, 0);
    assert_eq!(augmentations(3, 0), first);
    let second = augmentations(1, 1);
    assert!(first.iter().zip(&second).all(|(one, other)| one != other));
    let mut unique = [first, second].concat();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), 80);
}
