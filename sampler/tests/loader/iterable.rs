//! Datasets that only iterate over their samples.

use super::support::{PATIENCE, options};
use hexagram_sampler::dataset::{Cause, Iterable, IterableDataset, Pass};
use hexagram_sampler::loader::{DataLoader, LoaderError, LoaderOptions, OnFailure, WorkerInfo};
use std::sync::{Arc, Mutex, mpsc};

/// `0..len`, each worker its share; or all of them, if it makes a `claim` about its length.
pub(crate) struct Count {
    pub(crate) len: usize,
    pub(crate) claim: Option<usize>,
}

impl IterableDataset for Count {
    type Sample = usize;

    fn len(&self) -> Option<usize> {
        self.claim
    }

    fn iter(&self, worker: &WorkerInfo) -> Result<Pass<usize>, Cause> {
        Ok(match self.claim {
            Some(_) => Box::new((0..self.len).map(Ok)),
            None => Box::new((worker.id..self.len).step_by(worker.workers).map(Ok)),
        })
    }
}

fn batches(loader: &mut DataLoader<hexagram_sampler::loader::Array<usize>>) -> Vec<Vec<usize>> {
    super::support::epoch(loader)
}

#[test]
fn workers_take_turns_and_shard_by_what_they_are() {
    let mut loader = DataLoader::new(Iterable(Count { len: 10, claim: None }), options(2, 0)).unwrap();
    assert_eq!(loader.len(), None);
    assert_eq!(batches(&mut loader).concat(), (0..10).collect::<Vec<_>>());
    for persistent_workers in [false, true] {
        let given = LoaderOptions { persistent_workers, ..options(2, 3) };
        let mut loader = DataLoader::new(Iterable(Count { len: 13, claim: None }), given).unwrap();
        for _ in 0..3 {
            // Worker 0 has 0, 3, 6, 9, 12; worker 1 has 1, 4, 7, 10; worker 2 has 2, 5, 8, 11.
            let expected =
                [vec![0, 3], vec![1, 4], vec![2, 5], vec![6, 9], vec![7, 10], vec![8, 11], vec![12]];
            assert_eq!(batches(&mut loader), expected);
        }
    }
}

#[test]
fn each_workers_last_batch_can_be_dropped() {
    let given = LoaderOptions { drop_last: true, ..options(3, 2) };
    let mut loader = DataLoader::new(Iterable(Count { len: 10, claim: None }), given).unwrap();
    assert_eq!(batches(&mut loader), [[0, 2, 4], [1, 3, 5]]);
}

#[test]
fn it_goes_on_where_it_stopped() {
    let loader = || DataLoader::new(Iterable(Count { len: 29, claim: None }), options(2, 3)).unwrap();
    let whole = batches(&mut loader());
    for stop in 0..=whole.len() {
        let mut first = loader();
        let mut begun = first.iter();
        let head: Vec<_> = begun.by_ref().take(stop).map(|batch| batch.unwrap().to_vec()).collect();
        let state = begun.state();
        drop(begun);
        let mut second = loader();
        second.resume(&state).unwrap();
        assert_eq!([head, batches(&mut second)].concat(), whole, "{stop}");
    }
    let state = loader().state();
    let mut other = DataLoader::new(Iterable(Count { len: 29, claim: None }), options(2, 2)).unwrap();
    let error = other.resume(&state).unwrap_err();
    assert!(matches!(error, LoaderError::State { .. }), "{error}");
}

/// A resume must get the samples that worker 0 had not delivered yet, although worker 1 had delivered as many
/// batches.
#[test]
fn out_of_order_nothing_is_lost_on_going_on() {
    /// `0..20`; worker 0 keeps one item back until the test releases it.
    struct Stuck(usize, Mutex<Option<mpsc::Receiver<()>>>);
    impl IterableDataset for Stuck {
        type Sample = usize;

        fn iter(&self, worker: &WorkerInfo) -> Result<Pass<usize>, Cause> {
            let items: Vec<usize> = (worker.id..20).step_by(worker.workers).collect();
            let stuck = self.0;
            let told = self.1.lock().unwrap().take_if(|_| worker.id == 0);
            Ok(Box::new(items.into_iter().map(move |item| {
                if let Some(told) = told.as_ref().filter(|_| item == stuck) {
                    let _ = told.recv_timeout(PATIENCE);
                }
                Ok(item)
            })))
        }
    }
    let loader = |stuck, told| {
        let given = LoaderOptions { in_order: false, ..options(1, 2) };
        DataLoader::new(Iterable(Stuck(stuck, Mutex::new(told))), given).unwrap()
    };
    // All samples without item 0 or 2, and how many of them are in order.
    for (stuck, come, position) in [(0, vec![1, 3], 0), (2, vec![0, 1, 3, 5], 2)] {
        let (release, told) = mpsc::channel();
        let mut first = loader(stuck, Some(told));
        let mut begun = first.iter();
        let mut seen: Vec<usize> = begun.by_ref().take(come.len()).map(|batch| batch.unwrap()[0]).collect();
        seen.sort_unstable();
        let state = begun.state();
        assert_eq!((seen, state.position), (come, position));
        drop(release);
        drop(begun);
        let mut second = loader(stuck, None);
        second.resume(&state).unwrap();
        let mut rest = batches(&mut second).concat();
        rest.sort_unstable();
        assert_eq!(rest, (position..20).collect::<Vec<_>>());
    }
}

#[test]
fn the_length_is_a_promise() {
    use std::io::Write;
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    for (claim, warned) in [(20, false), (10, true)] {
        let log = Log::default();
        let mut count = 0;
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            // Each of two workers gives all ten.
            let dataset = Iterable(Count { len: 10, claim: Some(claim) });
            let mut loader = DataLoader::new(dataset, options(4, 2)).unwrap();
            assert_eq!(loader.len(), Some(claim.div_ceil(4)));
            count = batches(&mut loader).concat().len();
        });
        assert_eq!(count, 20);
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.matches("more than its len() of 10").count(), usize::from(warned), "{log}");
    }
}

/// Fails or panics at item 3 of each pass.
struct Broken {
    panics: bool,
}

impl IterableDataset for Broken {
    type Sample = usize;

    fn iter(&self, worker: &WorkerInfo) -> Result<Pass<usize>, Cause> {
        let panics = self.panics;
        let item = move |at| {
            assert!(at != 3 || !panics, "lost it");
            if at == 3 { Err("the connection is gone".into()) } else { Ok(at) }
        };
        Ok(Box::new((worker.id..6).map(item)))
    }
}

#[test]
fn failed_items_are_named_or_skipped() {
    for panics in [false, true] {
        let mut loader = DataLoader::new(Iterable(Broken { panics }), options(2, 1)).unwrap();
        let error = loader.iter().find_map(Result::err).unwrap().to_string();
        assert!(error.starts_with("worker 0 cannot load its item 3 in epoch 0"), "{error}");
        let given = LoaderOptions { on_failure: OnFailure::Skip, ..options(2, 1) };
        let mut loader = DataLoader::new(Iterable(Broken { panics }), given).unwrap();
        assert_eq!(batches(&mut loader), [vec![0, 1], vec![2, 4], vec![5]]);
        assert_eq!(loader.skipped(), 1);
    }
}

#[test]
fn a_stream_that_only_fails_is_not_skipped_for_ever() {
    struct Dead;
    impl IterableDataset for Dead {
        type Sample = usize;

        fn iter(&self, _: &WorkerInfo) -> Result<Pass<usize>, Cause> {
            Ok(Box::new(std::iter::repeat_with(|| Err("the connection is gone".into()))))
        }
    }
    for workers in [0, 2] {
        let given = LoaderOptions { on_failure: OnFailure::Skip, ..options(2, workers) };
        let error = DataLoader::new(Iterable(Dead), given).unwrap().iter().next().unwrap().unwrap_err();
        assert!(matches!(error, LoaderError::Item { item: 1000, .. }), "{error}");
    }
}

#[test]
fn without_batches_single_items_come() {
    let given = LoaderOptions { batch_size: None, ..options(1, 2) };
    let mut loader = DataLoader::unbatched(Iterable(Count { len: 7, claim: None }), given).unwrap();
    assert_eq!(loader.iter().map(Result::unwrap).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
}
