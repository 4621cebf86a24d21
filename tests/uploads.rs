//! Batches on their way to a device: in time and in order, whole, and with their memory back in the end.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use hexagram::physical::testing::late::{Late, Omission};
use hexagram::sampler::dataset::{Cause, Dataset, Fetch, Items, Zip};
use hexagram::sampler::loader::{Array, LoaderState};
use hexagram::testing::queue;
use hexagram::{Buffer, DType, DataLoader, LoaderOptions, Pinned, Queue, Uploads};
use std::sync::Arc;

/// Samples, batch and number of batches of the loaders here; the last batch is not full.
const SAMPLES: usize = 11;
const BATCH: usize = 3;
const BATCHES: usize = 4;

fn loader(queue: &Queue, workers: usize) -> DataLoader<(Array<f32>, Array<i64>)> {
    let features = Items((1..=SAMPLES).map(|sample| sample as f32).collect());
    let labels = Items((1..=SAMPLES).map(|sample| 10 * sample as i64).collect());
    let memory = Some(Arc::new(Pinned::new(queue)) as _);
    let options = LoaderOptions { batch_size: Some(BATCH), workers, memory, ..LoaderOptions::default() };
    DataLoader::new(Zip::new(features, labels).unwrap(), options).unwrap()
}

/// Adds up the batches of an epoch on a separate queue; returns the first elements of the sum.
fn sums(late: &Late) -> hexagram::Result<Vec<f32>> {
    let computes = late.queue();
    let copies = late.queue();
    let mut loader = loader(&copies, 0);
    let sum = Buffer::zeroed_on(&computes, DType::F32, BATCH)?;
    for batch in Uploads::new(loader.iter(), &copies) {
        let (features, _) = batch.unwrap();
        let len = features.elements.len();
        sum.write(0..len)?.add_scaled(1.0, &features.elements.read_all()?)?;
    }
    Ok(sum.host::<f32>()?.to_vec())
}

#[test]
fn what_computes_waits_for_each_copy_and_for_nothing_else() {
    let late = Late::new(0);
    let want = sums(&late).unwrap();
    assert_eq!(want, [1.0 + 4.0 + 7.0 + 10.0, 2.0 + 5.0 + 8.0 + 11.0, 3.0 + 6.0 + 9.0]);
    assert_eq!(late.queue_waits(), BATCHES as u64);
    for wait in 0..BATCHES as u64 {
        let got = sums(&Late::leaving_out(Omission::QueueWait(wait)));
        assert!(got.is_err() || got.is_ok_and(|got| got != want), "wait {wait} changes nothing");
    }
    let got = sums(&Late::leaving_out(Omission::HostWaits));
    assert!(got.is_err() || got.is_ok_and(|got| got != want), "waits of the host change nothing");
}

#[test]
fn every_batch_arrives_whole_and_memory_comes_back() {
    for workers in [0, 2] {
        let copies = queue();
        let computes = queue();
        let mut loader = loader(&copies, workers);
        for _epoch in 0..3 {
            let mut features = Vec::new();
            let mut labels = Vec::new();
            for batch in Uploads::new(loader.iter(), &copies) {
                let (x, y) = batch.unwrap();
                assert_eq!(
                    (x.shape.to_vec(), x.elements.queue().is_host()),
                    ([x.elements.len()].to_vec(), copies.is_host())
                );
                let here = Buffer::zeroed_on(&computes, DType::F32, x.elements.len()).unwrap();
                here.write_all().unwrap().copy_from(&x.elements.read_all().unwrap()).unwrap();
                features.extend_from_slice(&here.host::<f32>().unwrap());
                labels.extend_from_slice(&y.elements.host::<i64>().unwrap());
            }
            assert_eq!(features, (1..=SAMPLES).map(|sample| sample as f32).collect::<Vec<_>>());
            assert_eq!(labels, (1..=SAMPLES).map(|sample| 10 * sample as i64).collect::<Vec<_>>());
        }
        copies.check().unwrap();
        assert_eq!(loader.pool().usage().in_use, 0, "with {workers} workers");
        assert!(loader.pool().usage().allocated <= 2 * (2 + 3 * workers as u64), "{:?}", loader.pool());
    }
}

#[test]
fn the_state_is_that_of_the_batch_that_was_handed_out() {
    let copies = queue();
    let mut whole = loader(&copies, 2);
    let mut batches = Uploads::new(whole.iter(), &copies);
    assert_eq!(batches.state().position, 0);
    let states: Vec<LoaderState> =
        std::iter::from_fn(|| batches.next().map(|batch| batch.map(drop).unwrap()).map(|()| batches.state()))
            .collect();
    assert_eq!(states.iter().map(|state| state.position).collect::<Vec<_>>(), [3, 6, 9, 12]);
    assert!(states.iter().all(|state| state.epoch == 0));
    let mut rest = loader(&copies, 0);
    rest.resume(&states[1]).unwrap();
    let (features, _) = Uploads::new(rest.iter(), &copies).next().unwrap().unwrap();
    assert_eq!(*features.elements.host::<f32>().unwrap(), [7.0, 8.0, 9.0]);
}

#[test]
fn a_sample_that_fails_is_named_after_all_batches_before_it() {
    let copies = queue();
    let broken = |sample: f32, fetch: &Fetch<'_>| -> Result<f32, Cause> {
        let _ = fetch.pool();
        if sample == 7.0 { Err("the disk is full".into()) } else { Ok(sample) }
    };
    for workers in [0, 2] {
        let dataset = Items((1..=SAMPLES).map(|sample| sample as f32).collect()).map(broken);
        let memory = Some(Arc::new(Pinned::new(&copies)) as _);
        let options = LoaderOptions { batch_size: Some(BATCH), workers, memory, ..LoaderOptions::default() };
        let mut loader = DataLoader::new(dataset, options).unwrap();
        let mut batches = Uploads::new(loader.iter(), &copies);
        assert!(batches.by_ref().take(2).all(|batch| batch.is_ok()));
        let Some(Err(error)) = batches.next() else { panic!("sample 6 was loaded") };
        assert!(error.to_string().contains("cannot load sample 6 in epoch 0: the disk is full"), "{error}");
        assert_eq!(batches.state().position, 6);
        assert!(batches.next().is_none());
    }
}
