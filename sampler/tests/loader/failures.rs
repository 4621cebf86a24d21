//! Samples that fail, panic, take too long or do not fit together: errors with names, never a hang.

use super::support::{Numbers, PATIENCE, epoch, numbers, options};
use hexagram_sampler::dataset::{Cause, Dataset, Fetch};
use hexagram_sampler::loader::{
    Actor, Array, CollateError, DataLoader, LoaderError, LoaderOptions, Misfit, OnFailure,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Sample 17 fails the first `times` times, by panic if told so.
fn broken(times: u32, panics: bool) -> impl Dataset<Sample = usize> {
    let failed = AtomicU32::new(0);
    let load = move |index: usize, _: &Fetch<'_>| {
        if index == 17 && failed.fetch_add(1, Ordering::Relaxed) < times {
            assert!(!panics, "the disk is on fire");
            return Err("the disk is full".into());
        }
        Ok(index)
    };
    Numbers { len: 40, load }
}

#[test]
fn a_failed_sample_is_named_with_its_worker() {
    for workers in [0, 1, 3] {
        for panics in [false, true] {
            let mut loader = DataLoader::new(broken(9, panics), options(4, workers)).unwrap();
            let mut batches = loader.iter();
            let good: Vec<_> = batches.by_ref().take(4).map(|batch| batch.unwrap().to_vec()).collect();
            assert_eq!(good.concat(), (0..16).collect::<Vec<_>>(), "all batches before it are good");
            let error = batches.next().unwrap().unwrap_err();
            let LoaderError::Sample { index: 17, worker, epoch: 0, attempts: 1, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(matches!(worker, Actor::Caller), workers == 0);
            let text = error.to_string();
            assert!(text.contains("cannot load sample 17 in epoch 0"), "{text}");
            let cause = if panics { "it panicked: the disk is on fire" } else { "the disk is full" };
            assert!(text.contains(cause) && text.contains("`on_failure`"), "{text}");
            assert!(batches.next().is_none(), "an error ends the epoch");
            assert_eq!(batches.state().position, 16, "the state stands before the batch that failed");
        }
    }
}

#[test]
fn failed_samples_can_be_skipped_and_are_counted() {
    for workers in [0, 3] {
        let given = LoaderOptions { on_failure: OnFailure::Skip, ..options(4, workers) };
        let mut loader = DataLoader::new(broken(1, true), given).unwrap();
        let batches = epoch(&mut loader);
        assert_eq!(batches[4], [16, 18, 19]);
        assert_eq!(batches.concat().len(), 39);
        assert_eq!(loader.skipped(), 1);
        assert_eq!(epoch(&mut loader).concat().len(), 40, "it has recovered");
        assert_eq!(loader.skipped(), 1);
    }
}

#[test]
fn a_batch_without_samples_is_left_out() {
    let load = |index: usize, _: &Fetch<'_>| if index / 4 == 1 { Err("no".into()) } else { Ok(index) };
    let given = LoaderOptions { on_failure: OnFailure::Skip, ..options(4, 2) };
    let mut loader = DataLoader::new(Numbers { len: 12, load }, given).unwrap();
    assert_eq!(epoch(&mut loader), [vec![0, 1, 2, 3], vec![8, 9, 10, 11]]);
    assert_eq!(loader.skipped(), 4);
}

#[test]
fn failed_samples_can_be_tried_again() {
    let retrying = |times, retries| {
        let given = LoaderOptions { retries, retry_pause: Duration::from_millis(1), ..options(4, 2) };
        DataLoader::new(broken(times, false), given).unwrap()
    };
    assert_eq!(epoch(&mut retrying(2, 2)).concat().len(), 40);
    let error = retrying(3, 2).iter().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("(3 tries)"), "{error}");
}

#[test]
fn unequal_shapes_name_both_samples() {
    for workers in [0, 2] {
        let dataset = numbers(40).map(|index, _: &Fetch<'_>| {
            let width = if index == 22 { 3 } else { 2 };
            Ok(Array::new([width], vec![0u8; width])?)
        });
        let mut loader = DataLoader::new(dataset, options(4, workers)).unwrap();
        let error = loader.iter().find_map(Result::err).unwrap().to_string();
        assert!(error.contains("cannot make a batch of samples 20 (the first) and 22 in epoch 0"), "{error}");
        assert!(error.contains("has shape [3], but the first sample has [2]"), "{error}");
        assert!(error.contains("a collate function that pads them"), "{error}");
    }
}

#[test]
fn a_collate_function_that_fails_or_panics_is_named() {
    for panics in [false, true] {
        let collate = move |samples: Vec<usize>, _: &_| -> Result<usize, Cause> {
            assert!(!panics, "no way");
            Err(format!("{} samples are too many", samples.len()).into())
        };
        let mut loader = DataLoader::with_collate(numbers(10), options(6, 1), collate).unwrap();
        let error = loader.iter().next().unwrap().unwrap_err().to_string();
        assert!(
            error.starts_with("worker 0 cannot make a batch of samples 0, 1, 2, 3 and 2 more"),
            "{error}"
        );
        assert!(
            error.contains(if panics { "it panicked: no way" } else { "6 samples are too many" }),
            "{error}"
        );
    }
}

#[test]
fn a_worker_that_cannot_be_initialized_is_named() {
    let failing: hexagram_sampler::loader::WorkerInit = Arc::new(|_| Err("no licence".into()));
    let given = LoaderOptions { worker_init: Some(failing), ..options(1, 2) };
    let error = DataLoader::new(numbers(4), given).unwrap().iter().next().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("`worker_init` failed in worker ") && error.ends_with("no licence"), "{error}");
}

#[test]
fn a_stuck_worker_is_named_and_its_sample_too() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let load = move |index: usize, _: &Fetch<'_>| {
        if index == 5 {
            let _ = released.lock().unwrap().recv_timeout(PATIENCE);
        }
        Ok(index)
    };
    let given = LoaderOptions { timeout: Some(Duration::from_secs(2)), ..options(1, 1) };
    let mut loader = DataLoader::new(Numbers { len: 10, load }, given).unwrap();
    let mut batches = loader.iter();
    assert_eq!(batches.by_ref().take(5).filter(Result::is_ok).count(), 5);
    let error = batches.next().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("no batch within 2s: worker 0 has been loading sample 5 for"), "{error}");
    assert!(error.ends_with("or raise `timeout`"), "{error}");
    drop(release);
}

#[test]
fn the_pinning_stage_runs_in_its_own_thread_and_its_failure_is_named() {
    for workers in [0, 2] {
        let threads = Arc::new(Mutex::new(Vec::new()));
        let seen = threads.clone();
        let mut loader = DataLoader::new(numbers(30), options(4, workers)).unwrap().pin(move |mut batch| {
            seen.lock().unwrap().push(std::thread::current().name().unwrap_or_default().to_owned());
            batch.as_mut_slice().iter_mut().for_each(|number| *number += 100);
            Ok(batch)
        });
        assert_eq!(epoch(&mut loader).concat(), (100..130).collect::<Vec<_>>());
        let threads = threads.lock().unwrap();
        assert_eq!(threads.iter().all(|name| name == "loader pinning"), workers > 0, "{threads:?}");

        let failing = DataLoader::new(numbers(30), options(4, workers)).unwrap();
        let mut failing =
            failing.pin(|batch| if batch.contains(&9) { Err("out of memory".into()) } else { Ok(batch) });
        let outcome: Vec<_> = failing.iter().collect();
        assert_eq!(outcome.len(), 3);
        let error = outcome[2].as_ref().unwrap_err().to_string();
        assert!(error.starts_with("a batch of epoch 0 cannot be pinned: out of memory"), "{error}");
        let mut panicking = DataLoader::new(numbers(30), options(4, workers)).unwrap().pin(|_| panic!("oh"));
        let error = panicking.iter().next().unwrap().unwrap_err().to_string();
        assert!(error.contains("it panicked: oh"), "{error}");
    }
}

#[test]
fn a_stuck_pinning_stage_is_named() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let given = LoaderOptions { timeout: Some(Duration::from_secs(1)), ..options(1, 1) };
    let mut loader = DataLoader::new(numbers(10), given).unwrap().pin(move |batch| {
        let _ = released.lock().unwrap().recv_timeout(PATIENCE);
        Ok(batch)
    });
    let mut batches = loader.iter();
    let error = batches.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("pinning has been busy with a batch for"), "{error}");
    drop(release);
}

/// Persistent workers have begun the next epoch when the last sample fails: that epoch must still be complete.
#[test]
fn the_epoch_after_a_failure_is_whole() {
    for workers in 0..=3 {
        let load = |index: usize, fetch: &Fetch<'_>| match (fetch.worker().epoch, index) {
            (0, 39) => Err("not in epoch 0".into()),
            _ => Ok(index),
        };
        let given = LoaderOptions {
            persistent_workers: workers > 0,
            prefetch_factor: (workers > 0).then_some(8),
            timeout: (workers > 0).then_some(Duration::from_secs(10)),
            ..options(4, workers)
        };
        let mut loader = DataLoader::new(Numbers { len: 40, load }, given).unwrap();
        assert!(loader.iter().any(|batch| batch.is_err()));
        assert_eq!(epoch(&mut loader).concat(), (0..40).collect::<Vec<_>>(), "{workers} workers");
    }
}

#[test]
fn a_place_that_no_sample_has_is_left_out_of_the_words() {
    let far = CollateError {
        place: 99,
        part: String::new(),
        misfit: Box::new(Misfit::Length { found: 1, first: 2 }),
    };
    let given = LoaderOptions { timeout: Some(Duration::from_secs(10)), ..options(4, 1) };
    let collate = move |_: Vec<usize>, _: &_| -> Result<usize, Cause> { Err(far.clone().into()) };
    let mut loader = DataLoader::with_collate(numbers(8), given, collate).unwrap();
    let error = loader.iter().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("cannot make a batch of samples 0, 1, 2, 3"), "{error}");
}

#[test]
fn whoever_waits_for_ever_does() {
    let given = LoaderOptions { timeout: Some(Duration::MAX), ..options(4, 2) };
    let mut loader = DataLoader::new(numbers(8), given).unwrap();
    assert_eq!(epoch(&mut loader).len(), 2);
}
