//! Threads, memory and their bounds.

use super::support::{Numbers, PATIENCE, epoch, numbers, options};
use hexagram_sampler::dataset::{Cause, Dataset, Fetch, Items};
use hexagram_sampler::loader::{Array, DataLoader, LoaderOptions, WorkerInfo, WorkerInit};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

/// Counts its instances: one in each worker's thread.
struct Present(Arc<AtomicUsize>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    static PRESENT: std::cell::RefCell<Option<Present>> = const { std::cell::RefCell::new(None) };
}

/// A `worker_init` that counts the threads which have begun and not ended.
fn counting() -> (WorkerInit, Arc<AtomicUsize>) {
    let present = Arc::new(AtomicUsize::new(0));
    let counted = present.clone();
    let init: WorkerInit = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        PRESENT.with(|here| *here.borrow_mut() = Some(Present(counted.clone())));
        Ok(())
    });
    (init, present)
}

#[test]
fn an_iterator_dropped_early_leaves_no_threads() {
    for persistent_workers in [false, true] {
        let (worker_init, present) = counting();
        let given = LoaderOptions {
            worker_init: Some(worker_init),
            persistent_workers,
            prefetch_factor: Some(4),
            ..options(2, 3)
        };
        let mut loader = DataLoader::new(numbers(10_000), given).unwrap();
        for taken in [0, 1, 5, 50] {
            let batches: Vec<_> = loader.iter().take(taken).map(|batch| batch.unwrap().to_vec()).collect();
            assert_eq!(batches.concat(), (0..2 * taken).collect::<Vec<_>>());
            if !persistent_workers {
                assert_eq!(present.load(Ordering::SeqCst), 0, "after {taken} batches");
            }
        }
        drop(loader);
        assert_eq!(present.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn persistent_workers_stay_and_others_do_not() {
    for persistent_workers in [false, true] {
        let threads = Arc::new(Mutex::new(HashSet::<ThreadId>::new()));
        let seen = threads.clone();
        let load = move |index: usize, _: &Fetch<'_>| {
            seen.lock().unwrap().insert(std::thread::current().id());
            Ok(index)
        };
        let given = LoaderOptions { persistent_workers, ..options(3, 1) };
        let mut loader = DataLoader::new(Numbers { len: 9, load }, given).unwrap();
        (0..4).for_each(|_| assert_eq!(epoch(&mut loader).concat(), (0..9).collect::<Vec<_>>()));
        assert_eq!(threads.lock().unwrap().len(), if persistent_workers { 1 } else { 4 });
    }
}

#[test]
fn persistent_workers_begin_the_next_epoch_by_themselves() {
    let (loaded, loads) = mpsc::channel();
    let loaded = Mutex::new(loaded);
    let load = move |index: usize, fetch: &Fetch<'_>| {
        loaded.lock().unwrap().send((fetch.worker().epoch, index))?;
        Ok(index)
    };
    let given = LoaderOptions { persistent_workers: true, prefetch_factor: Some(3), ..options(1, 1) };
    let mut loader = DataLoader::new(Numbers { len: 4, load }, given).unwrap();
    assert_eq!(epoch(&mut loader).len(), 4);
    // Epoch 1 is not requested yet.
    let seen: Vec<_> = (0..7).map(|_| loads.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(seen[4..], [(1, 0), (1, 1), (1, 2)]);
    assert_eq!(epoch(&mut loader).len(), 4);
    // Batches loaded ahead were used; after a different choice of the epoch, that epoch is loaded instead.
    loader.set_epoch(7);
    assert_eq!(epoch(&mut loader).len(), 4);
    let rest: Vec<_> = loads.try_iter().collect();
    assert_eq!(rest.iter().filter(|load| load.0 == 1).count(), 1);
    assert_eq!(rest.iter().filter(|load| load.0 == 7).count(), 4);
}

#[test]
fn no_more_batches_are_under_way_than_asked_for() {
    for (workers, prefetch) in [(1, 1), (2, 3), (4, 2)] {
        let begun = Arc::new(AtomicUsize::new(0));
        let most = workers * prefetch;
        let counted = begun.clone();
        let load = move |index: usize, _: &Fetch<'_>| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(index)
        };
        let given = LoaderOptions { prefetch_factor: Some(prefetch), ..options(1, workers) };
        let mut loader = DataLoader::new(Numbers { len: 200, load }, given).unwrap();
        for (taken, batch) in loader.iter().enumerate() {
            batch.unwrap();
            let ahead = begun.load(Ordering::SeqCst) - taken;
            assert!(ahead <= most, "{ahead} batches with {workers} workers");
        }
    }
}

#[test]
fn dropping_does_not_wait_for_the_next_sample_of_a_pause() {
    let load = |_: usize, _: &Fetch<'_>| -> Result<usize, Cause> { Err("never".into()) };
    let given = LoaderOptions { retries: 3, retry_pause: Duration::from_secs(3600), ..options(1, 2) };
    let mut loader = DataLoader::new(Numbers { len: 9, load }, given).unwrap();
    let mut batches = loader.iter();
    let waker = std::task::Waker::noop();
    assert!(batches.poll_next(&mut std::task::Context::from_waker(waker)).is_pending());
    drop(batches);
}

#[test]
fn what_a_loader_holds_goes_with_it() {
    let witness = Arc::new(());
    let held = witness.clone();
    let load = move |index: usize, _: &Fetch<'_>| {
        let _ = &held;
        Ok(index)
    };
    let given = LoaderOptions { persistent_workers: true, ..options(1, 2) };
    let mut loader = DataLoader::new(Numbers { len: 9, load }, given).unwrap().pin(Ok);
    loader.iter().take(3).for_each(drop);
    assert_eq!(Arc::strong_count(&witness), 2);
    drop(loader);
    assert_eq!(Arc::strong_count(&witness), 1);
}

#[test]
fn workers_know_what_they_are() {
    let infos = Arc::new(Mutex::new(Vec::<WorkerInfo>::new()));
    let seen = infos.clone();
    let load = move |index: usize, fetch: &Fetch<'_>| {
        seen.lock().unwrap().push(*fetch.worker());
        Ok(index)
    };
    let given = LoaderOptions { seed: 3, ..options(1, 2) };
    let mut loader = DataLoader::new(Numbers { len: 100, load }, given).unwrap();
    epoch(&mut loader);
    let mut infos = infos.lock().unwrap().clone();
    infos.dedup();
    assert!(infos.iter().all(|info| info.workers == 2 && info.base_seed == 3 && info.id < 2));
    let info = WorkerInfo { id: 0, workers: 2, epoch: 0, base_seed: 3 };
    let others =
        [WorkerInfo { id: 1, ..info }, WorkerInfo { epoch: 1, ..info }, WorkerInfo { base_seed: 4, ..info }];
    assert!(others.iter().all(|other| other.seed() != info.seed()));
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn memory_stays_flat_over_a_hundred_thousand_batches() {
    const BATCHES: usize = 100_000;
    let images = Items((0..100).map(|at| Array::new([16], vec![at as f32; 16]).unwrap()).collect());
    let repeated =
        Arc::new(images).map(|image, fetch: &Fetch<'_>| Ok(image.map(fetch.pool(), |pixel| pixel + 1.0)));
    let prefetch_factor = Some(32); // so that threads hand over rarely
    let given = LoaderOptions { persistent_workers: true, shuffle: true, prefetch_factor, ..options(2, 2) };
    let mut loader = DataLoader::new(repeated, given).unwrap();
    let mut count = 0;
    let mut early = 0;
    while count < BATCHES {
        for batch in loader.iter() {
            assert_eq!(*batch.unwrap().shape(), [2, 16].into());
            count += 1;
        }
        if early == 0 && count > BATCHES / 10 {
            early = resident();
        }
    }
    // Other tests run in this process at the same time.
    let growth = resident().saturating_sub(early);
    assert!(growth < 32 << 20, "{growth} bytes more");
    let usage = loader.pool().usage();
    assert!(usage.allocated < BATCHES as u64 / 100, "{usage:?}");
}
