//! Every sample exactly once, for any number of ranks and workers, also when the job stops in mid-epoch and resumes
//! with different numbers.

use super::support::{numbers, options, uneven};
use hexagram_sampler::loader::{Array, DataLoader, LoaderError, LoaderOptions, LoaderState};
use hexagram_sampler::{
    Complexities, CostBalancedOptions, CostBalancedSampler, DistributedOptions, DistributedSampler,
    ElasticOptions, ElasticSampler, Sampler, SamplerError, Tail,
};

const LEN: usize = 103;
const BATCH: usize = 5;

/// The loaders of all ranks.
fn ranks(count: usize, workers: usize) -> Vec<DataLoader<Array<usize>>> {
    let loader = |rank| {
        let sampler = DistributedSampler::new(DistributedOptions {
            len: LEN,
            replicas: count,
            rank,
            seed: 9,
            exact: true,
            ..Default::default()
        });
        let given =
            LoaderOptions { sampler: Some(Box::new(sampler.unwrap())), seed: 9, ..options(BATCH, workers) };
        DataLoader::new(uneven(LEN), given).unwrap()
    };
    (0..count).map(loader).collect()
}

/// The loaders of all ranks, whose batches are those of a sampler of steps.
fn ranks_of_steps<S: Sampler<Item = Vec<usize>> + 'static>(
    count: usize,
    workers: usize,
    sampler: impl Fn(usize) -> Result<S, SamplerError>,
) -> Vec<DataLoader<Array<usize>>> {
    let loader = |rank| {
        let batch_sampler: Option<Box<dyn Sampler<Item = Vec<usize>>>> =
            Some(Box::new(sampler(rank).unwrap()));
        DataLoader::new(uneven(LEN), LoaderOptions { batch_sampler, ..options(1, workers) }).unwrap()
    };
    (0..count).map(loader).collect()
}

/// Each rank takes at most this many batches of the next epoch; returns all samples, and the position of every rank.
fn steps(loaders: &mut [DataLoader<Array<usize>>], most: usize) -> (Vec<usize>, Vec<LoaderState>) {
    let mut seen = Vec::new();
    let states = loaders.iter_mut().map(|loader| {
        let mut batches = loader.iter();
        batches.by_ref().take(most).for_each(|batch| seen.extend_from_slice(&batch.unwrap()));
        batches.state()
    });
    let states = states.collect();
    (seen, states)
}

fn assert_complete(mut seen: Vec<usize>, what: &str) {
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..LEN), "{what}");
}

#[test]
fn every_sample_comes_exactly_once() {
    for count in 1..=8 {
        for workers in 0..=4 {
            let mut loaders = ranks(count, workers);
            for _ in 0..2 {
                let (seen, _) = steps(&mut loaders, usize::MAX);
                assert_complete(seen, &format!("{count} ranks, {workers} workers"));
            }
        }
    }
}

#[test]
fn a_job_that_stops_goes_on_with_other_ranks_and_workers() {
    for count in 1..=8 {
        for workers in 0..=4 {
            let whole = LEN / (BATCH * count);
            let stop = (count * 7 + workers * 3) % (whole + 1);
            let others = 8 - (count + workers) % 8;
            let other_workers = 4 - (workers + count) % 5;
            let what =
                format!("{count} ranks, {workers} workers; {others}, {other_workers} from step {stop} on");
            let (mut seen, states) = steps(&mut ranks(count, workers), stop);
            assert!(states.iter().all(|state| *state == states[0]), "{what}");
            assert_eq!(states[0].position, stop * count * BATCH, "{what}");

            let mut loaders = ranks(others, other_workers);
            loaders.iter_mut().for_each(|loader| loader.resume(&states[0]).unwrap());
            let (rest, after) = steps(&mut loaders, usize::MAX);
            seen.extend(rest);
            assert_complete(seen, &what);
            assert!(after.iter().all(|state| (state.epoch, state.position) == (1, 0)), "{what}");
        }
    }
}

/// Steps of 13 samples, which is no multiple of the number of ranks: stopped on some ranks, resumed with others.
fn assert_steps_are_complete(ranks: impl Fn(usize, usize) -> Vec<DataLoader<Array<usize>>>) {
    for (count, stop, others) in [(1, 3, 8), (4, 0, 3), (3, 5, 4), (8, 7, 5), (5, 8, 2), (2, 1, 7)] {
        let (mut seen, states) = steps(&mut ranks(count, count % 3), stop);
        assert!(states.iter().all(|state| (state.epoch, state.position) == (0, stop * 13)), "{states:?}");
        let mut loaders = ranks(others, others % 3);
        loaders.iter_mut().for_each(|loader| loader.resume(&states[0]).unwrap());
        seen.extend(steps(&mut loaders, usize::MAX).0);
        assert_complete(seen, &format!("{count} ranks, then {others} from step {stop} on"));
    }
}

#[test]
fn samplers_of_steps_go_on_with_other_ranks_too() {
    assert_steps_are_complete(|replicas, workers| {
        ranks_of_steps(replicas, workers, |rank| {
            let tail = Tail::Exact;
            ElasticSampler::new(ElasticOptions {
                len: LEN,
                replicas,
                rank,
                global_batch: 13,
                tail,
                ..Default::default()
            })
        })
    });
    assert_steps_are_complete(|replicas, workers| {
        ranks_of_steps(replicas, workers, |rank| {
            let costs = Complexities::new((0..LEN).map(|index| (index * 37 % 50) as f64).collect())?;
            let tail = Tail::Exact;
            let options =
                CostBalancedOptions { replicas, rank, global_batch: 13, tail, ..Default::default() };
            CostBalancedSampler::new(costs, options)
        })
    });
}

#[test]
fn stopping_twice_is_no_different() {
    let (mut seen, states) = steps(&mut ranks(3, 2), 2);
    for (count, workers, most) in [(5, 1, 1), (2, 4, 3), (7, 0, usize::MAX)] {
        let mut loaders = ranks(count, workers);
        let state = if most == 1 { states[0].clone() } else { seen_state(seen.len()) };
        loaders.iter_mut().for_each(|loader| loader.resume(&state).unwrap());
        seen.extend(steps(&mut loaders, most).0);
    }
    assert_complete(seen, "three stops");

    fn seen_state(position: usize) -> LoaderState {
        LoaderState { position, ..ranks(1, 0)[0].state() }
    }
}

#[test]
fn the_state_is_that_of_the_batches_handed_out_not_of_those_prefetched() {
    let loader = |workers| {
        let given = LoaderOptions { shuffle: true, persistent_workers: workers > 0, ..options(4, workers) };
        DataLoader::new(uneven(50), given).unwrap()
    };
    let mut whole = loader(0);
    let orders: Vec<Vec<usize>> = (0..3).map(|_| super::support::epoch(&mut whole).concat()).collect();
    for workers in [0, 1, 4] {
        for stop in 0..=13 {
            let mut first = loader(workers);
            assert_eq!(super::support::epoch(&mut first).concat(), orders[0]);
            let mut second = first.iter();
            let head: Vec<usize> =
                second.by_ref().take(stop).flat_map(|batch| batch.unwrap().to_vec()).collect();
            drop(second);
            let state = first.state();
            assert_eq!((state.epoch, state.position), (1, 4 * stop));
            let mut other = loader(4 - workers);
            other.resume(&state).unwrap();
            let tail = super::support::epoch(&mut other).concat();
            assert_eq!([head, tail].concat(), orders[1], "{workers} workers, {stop} batches");
            assert_eq!(super::support::epoch(&mut other).concat(), orders[2], "the epoch after");
            // Without a resume, an epoch that was left early has ended.
            assert_eq!(super::support::epoch(&mut first).concat(), orders[2]);
        }
    }
}

#[test]
fn a_failed_epoch_can_be_resumed() {
    let given = || LoaderOptions { seed: 2, shuffle: true, ..options(4, 2) };
    let mut whole = DataLoader::new(numbers(40), given()).unwrap();
    let order = super::support::epoch(&mut whole).concat();
    let failing = std::sync::atomic::AtomicBool::new(true);
    let bad = order[21];
    let load = move |index: usize, _: &hexagram_sampler::dataset::Fetch<'_>| {
        if index == bad && failing.swap(false, std::sync::atomic::Ordering::Relaxed) {
            return Err("not now".into());
        }
        Ok(index)
    };
    let mut loader = DataLoader::new(super::support::Numbers { len: 40, load }, given()).unwrap();
    let head: Vec<usize> = loader.iter().filter_map(Result::ok).flat_map(|batch| batch.to_vec()).collect();
    assert_eq!(head, order[..20]);
    let state = loader.state();
    loader.resume(&state).unwrap();
    assert_eq!(super::support::epoch(&mut loader).concat(), order[20..]);
}

#[test]
fn the_state_of_another_order_is_refused() {
    let loader = |len, seed| {
        DataLoader::new(numbers(len), LoaderOptions { shuffle: true, seed, ..options(4, 0) }).unwrap()
    };
    let state = loader(50, 1).state();
    assert!(loader(50, 1).resume(&state).is_ok());
    for (mut other, differs) in
        [(loader(51, 1), "fingerprint"), (loader(50, 2), "seed 1, but this loader has seed 2")]
    {
        let error = other.resume(&state).unwrap_err();
        assert!(matches!(error, LoaderError::State { .. }), "{error}");
        assert!(error.to_string().contains(differs), "{error}");
        assert!(
            error.to_string().contains("create the loader and its sampler with the same options"),
            "{error}"
        );
    }
}

#[test]
fn a_sampler_of_another_seed_is_refused_by_what_differs() {
    let loader = |seed| {
        let sampler =
            DistributedSampler::new(DistributedOptions { len: LEN, replicas: 1, seed, ..Default::default() });
        let given = LoaderOptions { sampler: Some(Box::new(sampler.unwrap())), ..options(BATCH, 0) };
        DataLoader::new(numbers(LEN), given).unwrap()
    };
    let saved = loader(0).state();
    let mut present = loader(7);
    let error = present.resume(&saved).unwrap_err().to_string();
    for state in [saved, present.state()] {
        assert!(error.contains(&format!("a sampler of fingerprint {:#x}", state.order)), "{error}");
    }
    assert!(!error.contains("seed 0") && error.contains("the same options and seeds"), "{error}");
}

#[test]
fn setting_the_epoch_that_is_resumed_does_not_begin_it_anew() {
    let mut first = ranks(1, 0);
    let (_, states) = steps(&mut first, 2);
    let left = |set: Option<u64>| {
        let mut second = ranks(1, 0);
        second[0].resume(&states[0]).unwrap();
        set.into_iter().for_each(|epoch| second[0].set_epoch(epoch));
        steps(&mut second, LEN).0
    };
    let all = left(None);
    assert_eq!(all.len(), LEN - 2 * BATCH);
    assert_eq!(left(Some(states[0].epoch)), all);
    assert_eq!(left(Some(states[0].epoch + 1)).len(), LEN);
}
