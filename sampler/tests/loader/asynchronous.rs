//! Asynchronous iteration, with the smallest executor there is.

use super::support::{Numbers, PATIENCE, numbers, options, uneven};
use hexagram_sampler::dataset::Fetch;
use hexagram_sampler::loader::{DataLoader, LoaderError, LoaderOptions};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls only when woken.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(deadline.saturating_duration_since(Instant::now())),
        }
        assert!(Instant::now() < deadline, "nobody woke the future");
    }
}

#[test]
fn batches_come_as_they_do_when_blocking() {
    for workers in [0, 1, 3] {
        let given = LoaderOptions { shuffle: true, persistent_workers: workers > 0, ..options(3, workers) };
        let mut loader = DataLoader::new(uneven(300), given).unwrap();
        let blocking = super::support::epoch(&mut loader);
        loader.set_epoch(0);
        let mut batches = loader.iter();
        let mut awaited = Vec::new();
        block_on(async {
            while let Some(batch) = batches.next_async().await {
                awaited.push(batch.unwrap().to_vec());
            }
        });
        assert_eq!(awaited, blocking);
    }
}

#[test]
fn an_arrival_wakes_the_future_also_behind_a_pinning_stage() {
    for pinned in [false, true] {
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let load = move |index: usize, _: &Fetch<'_>| {
            released.lock().unwrap().recv_timeout(PATIENCE)?;
            Ok(index)
        };
        let mut loader = DataLoader::new(Numbers { len: 3, load }, options(1, 1)).unwrap();
        if pinned {
            loader = loader.pin(Ok);
        }
        let mut batches = loader.iter();
        assert!(batches.poll_next(&mut Context::from_waker(Waker::noop())).is_pending());
        let releasing = std::thread::spawn(move || (0..3).for_each(|_| release.send(()).unwrap()));
        for expected in 0..3 {
            assert_eq!(block_on(batches.next_async()).unwrap().unwrap().as_slice(), [expected]);
        }
        assert!(block_on(batches.next_async()).is_none());
        releasing.join().unwrap();
    }
}

#[test]
fn a_dropped_future_loses_nothing() {
    let mut loader = DataLoader::new(uneven(40), options(1, 2)).unwrap();
    let mut batches = loader.iter();
    let mut seen = Vec::new();
    while seen.len() < 40 {
        let mut future = Box::pin(batches.next_async());
        if let Poll::Ready(batch) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            seen.push(batch.unwrap().unwrap()[0]);
        }
    }
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
}

#[test]
fn time_that_is_up_wakes_the_future() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let load = move |index: usize, _: &Fetch<'_>| {
        let _ = released.lock().unwrap().recv_timeout(PATIENCE);
        Ok(index)
    };
    let given = LoaderOptions { timeout: Some(Duration::from_secs(2)), ..options(1, 1) };
    let mut loader = DataLoader::new(Numbers { len: 3, load }, given).unwrap();
    let mut batches = loader.iter();
    let error = block_on(batches.next_async()).unwrap().unwrap_err();
    assert!(matches!(error, LoaderError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("worker 0 has been loading sample 0"), "{error}");
    assert!(block_on(batches.next_async()).is_none());
    drop(release);
}

#[test]
fn a_loader_can_move_to_another_thread_between_batches() {
    let mut loader = DataLoader::new(numbers(20), options(4, 2)).unwrap();
    loader.iter().take(2).for_each(drop);
    let sum = std::thread::spawn(move || {
        loader.iter().map(|batch| batch.unwrap().iter().sum::<usize>()).sum::<usize>()
    });
    assert_eq!(sum.join().unwrap(), 190);
}
