//! Invalid options are rejected, with the reason and the remedy.

use super::support::{numbers, options};
use hexagram_sampler::SequentialSampler;
use hexagram_sampler::dataset::{Iterable, Lines};
use hexagram_sampler::loader::{DataLoader, LoaderOptions};
use std::time::Duration;

fn refusal(given: LoaderOptions) -> String {
    DataLoader::new(numbers(10), given).err().unwrap().to_string()
}

#[test]
fn contradictions_are_refused() {
    let sampler = || Some(Box::new(SequentialSampler::new(10).unwrap()) as Box<_>);
    let batches = || {
        let sampler = SequentialSampler::new(10).unwrap();
        Some(Box::new(hexagram_sampler::BatchSampler::new(sampler, 2, false).unwrap()) as Box<_>)
    };
    let cases = [
        (LoaderOptions { batch_size: Some(0), ..options(1, 0) }, "`batch_size` is 0; set it to 1 or more"),
        (LoaderOptions { sampler: sampler(), shuffle: true, ..options(1, 0) }, "`sampler` and `shuffle`"),
        (LoaderOptions { batch_sampler: batches(), ..options(2, 0) }, "`batch_sampler` makes whole batches"),
        (LoaderOptions { batch_sampler: batches(), shuffle: true, ..options(1, 0) }, "`batch_sampler` makes"),
        (
            LoaderOptions { batch_sampler: batches(), sampler: sampler(), ..options(1, 0) },
            "`batch_sampler` makes",
        ),
        (
            LoaderOptions { batch_sampler: batches(), drop_last: true, ..options(1, 0) },
            "`batch_sampler` makes",
        ),
        (LoaderOptions { batch_size: None, drop_last: true, ..options(1, 0) }, "`drop_last` drops a batch"),
        (LoaderOptions { batch_size: None, ..options(1, 0) }, "`DataLoader::unbatched`"),
        (LoaderOptions { prefetch_factor: Some(2), ..options(1, 0) }, "`prefetch_factor` requires workers"),
        (LoaderOptions { prefetch_factor: Some(0), ..options(1, 1) }, "`prefetch_factor` is 0"),
        (LoaderOptions { workers: 40_000, ..options(1, 1) }, "`workers` is above 1024"),
        (
            LoaderOptions { persistent_workers: true, ..options(1, 0) },
            "`persistent_workers` requires workers",
        ),
        (LoaderOptions { timeout: Some(Duration::from_secs(1)), ..options(1, 0) }, "`timeout` has no effect"),
        (LoaderOptions { timeout: Some(Duration::ZERO), ..options(1, 1) }, "`timeout` is zero"),
        (
            LoaderOptions { worker_init: Some(std::sync::Arc::new(|_| Ok(()))), ..options(1, 0) },
            "`worker_init` requires workers",
        ),
    ];
    for (given, what) in cases {
        let refusal = refusal(given);
        assert!(refusal.contains(what), "{refusal}");
        assert!(refusal.contains("; "), "no remedy: {refusal}");
    }
    let batched = DataLoader::unbatched(numbers(3), options(1, 0)).err().unwrap().to_string();
    assert!(batched.contains("set `batch_size` to none"), "{batched}");
}

#[test]
fn an_empty_dataset_has_no_batches() {
    for shuffle in [false, true] {
        let given = LoaderOptions { shuffle, ..options(1, 0) };
        assert_eq!(DataLoader::new(numbers(0), given).unwrap().iter().count(), 0);
    }
}

#[test]
fn iterable_datasets_have_their_own_order() {
    let stream = || Iterable(super::iterable::Count { len: 5, claim: None });
    let sampler = Some(Box::new(SequentialSampler::new(10).unwrap()) as Box<_>);
    for given in
        [LoaderOptions { shuffle: true, ..options(1, 0) }, LoaderOptions { sampler, ..options(1, 0) }]
    {
        let error = DataLoader::new(stream(), given).err().unwrap().to_string();
        assert!(error.contains("an iterable dataset has an order of its own"), "{error}");
    }
    let error = DataLoader::new(stream(), LoaderOptions { retries: 1, ..options(1, 0) }).err().unwrap();
    assert!(error.to_string().contains("`retries`"), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let error = Lines::open("/does/not/exist.txt").err().unwrap().to_string();
    assert!(error.contains("/does/not/exist.txt") && error.contains("check the path"), "{error}");
}
