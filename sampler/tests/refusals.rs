//! Wrong calls fail immediately, with the remedy.
use hexagram_sampler::{
    BatchSampler, Batching, Complexities, CostBalancedOptions, CostBalancedSampler, DistributedOptions,
    DistributedSampler, ElasticOptions, ElasticSampler, LoadBalancingBatchSampler,
    LoadBalancingDistributedSampler, LoadBalancingOptions, RandomOptions, RandomSampler, SamplerError,
    SequentialSampler, SubsetRandomSampler, WeightedOptions, WeightedRandomSampler,
};
use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// Only a hang reaches this limit.
const DEADLINE: Duration = Duration::from_secs(60);

fn refused<T>(result: Result<T, SamplerError>, what: &str) {
    let Err(error) = result else { unreachable!("not refused: {what}") };
    assert!(error.to_string().contains(what), "{error} instead of {what}");
}

fn costs(values: &[f64]) -> Complexities {
    Complexities::new(values.to_vec()).unwrap()
}

#[test]
fn distributed() {
    let new = |options| DistributedSampler::new(options);
    let options = DistributedOptions { len: 9, replicas: 4, ..Default::default() };
    refused(new(DistributedOptions { replicas: 0, ..options }), "set `replicas`");
    refused(new(DistributedOptions { rank: 4, ..options }), "rank 4 does not exist among 4 replicas");
    refused(new(DistributedOptions { len: 9, ..Default::default() }), "the number of ranks is not set");
    refused(new(DistributedOptions { drop_last: true, exact: true, ..options }), "`drop_last` and `exact`");
    refused(new(DistributedOptions { len: usize::MAX, ..options }), "more than this sampler can count");
    refused(new(DistributedOptions { replicas: usize::MAX, ..options }), "more than this sampler can count");
    assert!(new(DistributedOptions { len: 3, ..options }).is_ok(), "more ranks than samples are padded");
}

#[test]
fn samplers_of_one_rank() {
    refused(SubsetRandomSampler::new(Vec::new(), 0), "no samples");
    refused(BatchSampler::new(SequentialSampler::new(3).unwrap(), 0, false), "at least one sample");
    refused(RandomSampler::new(RandomOptions::default()), "no samples");
    let endless = RandomOptions { len: usize::MAX, ..Default::default() };
    refused(RandomSampler::new(endless), "more than this sampler can count");
    let none = RandomOptions { len: 3, num_samples: Some(0), ..Default::default() };
    refused(RandomSampler::new(none), "`num_samples` cannot be 0");

    let weighted = |weights: &[f64], num_samples, replacement| {
        let options =
            WeightedOptions { weights: weights.to_vec(), num_samples, replacement, ..Default::default() };
        WeightedRandomSampler::new(options)
    };
    refused(weighted(&[], 1, true), "no samples");
    refused(weighted(&[1.0], 0, true), "`num_samples` cannot be 0");
    refused(weighted(&[1.0, -2.0], 1, true), "`weights` number 1 (from 0) is -2");
    refused(weighted(&[f64::NAN], 1, true), "is NaN");
    refused(weighted(&[f64::INFINITY], 1, true), "is inf");
    refused(weighted(&[f64::MAX, f64::MAX], 2, true), "`weights` cannot be inf; scale the weights down");
    refused(weighted(&[0.0, 0.0], 1, true), "0 samples have a weight above 0, so that 1 cannot be drawn");
    refused(
        weighted(&[1.0, 0.0, 1.0], 3, false),
        "2 samples have a weight above 0, so that 3 cannot be drawn",
    );
    assert!(weighted(&[1.0, 0.0, 1.0], 3, true).is_ok());
}

#[test]
fn elastic() {
    let new = |options| ElasticSampler::new(options);
    let options = ElasticOptions { len: 9, replicas: 4, global_batch: 8, ..Default::default() };
    refused(new(ElasticOptions { replicas: 0, ..options }), "set `replicas`");
    refused(new(ElasticOptions { len: 0, ..options }), "no samples");
    refused(new(ElasticOptions { rank: 9, ..options }), "rank 9 does not exist");
    refused(new(ElasticOptions { global_batch: 3, ..options }), "leaves some of 4 ranks without a sample");
    refused(new(ElasticOptions { global_batch: 10, ..options }), "9 samples are fewer than the 10");
    refused(new(ElasticOptions { global_batch: usize::MAX, ..options }), "more than this sampler can count");
}

#[test]
fn load_balancing() {
    let new = |options| LoadBalancingDistributedSampler::new(costs(&[1.0, 2.0, 3.0]), options);
    let options = LoadBalancingOptions { replicas: 4, ..Default::default() };
    refused(new(LoadBalancingOptions { rank: 4, ..options }), "rank 4 does not exist");
    refused(new(LoadBalancingOptions { replicas: 0, ..options }), "set `replicas`");
    let many = u32::MAX as usize;
    refused(new(LoadBalancingOptions { replicas: many, ..options }), "more than this sampler can count");
    refused(new(LoadBalancingOptions::default()), "the number of ranks is not set");
    for random_level in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        refused(new(LoadBalancingOptions { random_level, ..options }), "`random_level` cannot be");
    }
    let apart = LoadBalancingDistributedSampler::new(
        costs(&[0.0, 1e30]),
        LoadBalancingOptions { replicas: 1, random_level: 1.0, ..Default::default() },
    );
    refused(apart, "scale the complexities down");

    let batched = |batching| LoadBalancingBatchSampler::new(new(options).unwrap(), batching, false);
    refused(batched(Batching::Fixed(0)), "at least one sample");
    refused(batched(Batching::MaxTokens(2.5)), "sample 2 has 3 tokens, more than the limit 2.5");
    refused(batched(Batching::MaxPaddedTokens(0.0)), "`max_tokens` cannot be 0");
    refused(batched(Batching::MaxTokens(f64::NAN)), "`max_tokens` cannot be NaN");
}

#[test]
fn cost_balanced() {
    let new = |options| CostBalancedSampler::new(costs(&[1.0; 9]), options);
    let options = CostBalancedOptions { replicas: 2, global_batch: 4, ..Default::default() };
    let with = |change: fn(&mut CostBalancedOptions)| {
        let mut options = options.clone();
        change(&mut options);
        new(options)
    };
    refused(with(|options| options.rank = 2), "rank 2 does not exist");
    refused(with(|options| options.global_batch = 1), "leaves some of 2 ranks without a sample");
    refused(with(|options| options.global_batch = 10), "9 samples are fewer than the 10");
    refused(
        with(|options| options.speeds = vec![1.0]),
        "`speeds` has 1 numbers instead of 2; set one for each rank",
    );
    refused(with(|options| options.speeds = vec![1.0, 0.0]), "`speeds` number 1 (from 0) is 0");
    refused(with(|options| options.random_level = 2.0), "`random_level` cannot be 2");
    refused(with(|options| options.mix = 0), "`mix` cannot be 0");
    assert!(with(|options| options.mix = 1000).is_ok(), "as many kinds as there are samples");
}

/// A path in a temporary folder.
fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("complexities-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

#[test]
fn complexities() {
    refused(Complexities::new(Vec::new()), "no samples");
    for (value, shown) in [(f64::NAN, "NaN"), (-1.0, "-1"), (f64::INFINITY, "inf")] {
        refused(Complexities::new(vec![0.0, value]), &format!("`complexities` number 1 (from 0) is {shown}"));
    }
    let failing = |sample: usize| if sample == 700 { Err("torn page") } else { Ok(1.0) };
    refused(Complexities::evaluate(1000, failing), "complexity of sample 700 is unknown: torn page");
    refused(
        Complexities::evaluate(1000, |sample| Ok::<_, Infallible>(sample as f64 - 1.0)),
        "number 0 (from 0) is -1",
    );
    refused(Complexities::read(file("missing")), "missing: ");
    for (text, what) in [
        ("1\nx\n", "line 2 is not a number: \"x\";"),
        ("1\n\n2", "line 2 is not a number: \"\";"),
        ("1\nnan\n", "line 2 is nan instead of a finite number of at least 0"),
        ("1\r\n2\r\ninf\r\n", "line 3 is inf instead of"),
        ("1e309\n", "line 1 is 1e309 instead of"),
        ("1\n-2\n", "line 2 is -2 instead of"),
        ("", "bad: it is empty; write one number per line"),
        ("\r\n \n", "bad: it is empty;"),
    ] {
        fs::write(file("bad"), text).unwrap();
        refused(Complexities::read(file("bad")), what);
    }
    fs::write(file("bad"), "{".repeat(5_000_000)).unwrap();
    refused(Complexities::read(file("bad")), &format!("line 1 is not a number: \"{}\";", "{".repeat(40)));
    fs::write(file("bad"), b"\xff\n").unwrap();
    refused(Complexities::read(file("bad")), "bad: it is not UTF-8 text");
    refused(costs(&[1.0]).write(file("no").join("such").join("folder")), "folder: ");
}

#[test]
fn complexities_are_read_with_either_line_end() {
    fs::write(file("crlf"), "1\r\n2.5\r\n1e308\r\n").unwrap();
    assert_eq!(Complexities::read(file("crlf")).unwrap(), costs(&[1.0, 2.5, 1e308]));
}

#[test]
#[cfg(target_os = "linux")]
fn complexities_are_read_of_files_that_have_an_end() {
    for path in ["/dev/zero", "/dev/null"] {
        let read = Complexities::read(path);
        refused(read, &format!("{path}: it is a pipe or a device, not a regular file"));
    }
    refused(Complexities::read("/dev"), "/dev: it is a folder, not a file");
    let pipe = file("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    // It has no writer.
    refused(Complexities::read(&pipe), "pipe: it is a pipe or a device");
    let long = fs::File::create(file("long")).unwrap();
    long.set_len((4 << 30) + 1).unwrap();
    refused(Complexities::read(file("long")), "long: it has 4294967297 bytes; the maximum");
}

/// Ranks may be threads of one process.
#[test]
fn complexities_can_be_written_by_many_threads_at_once() {
    let folder = file("shared");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("costs");
    let written = costs(&(0..5000).map(f64::from).collect::<Vec<_>>());
    thread::scope(|threads| {
        let write = || (0..20).for_each(|_| written.write(&path).unwrap());
        (0..4).for_each(|_| drop(threads.spawn(write)));
    });
    assert_eq!(Complexities::read(&path).unwrap(), written);
}

/// Every block waits until another thread has begun the next, so that no thread has neighbouring ones.
#[test]
fn complexities_are_in_order_whoever_evaluates_them() {
    const BLOCK: usize = 64;
    let len = 10 * BLOCK;
    let several = thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    let furthest = Mutex::new(0);
    let moved = Condvar::new();
    let complexity = |sample: usize| {
        let mut seen = furthest.lock().unwrap();
        *seen = sample.max(*seen);
        moved.notify_all();
        let next = (sample / BLOCK + 1) * BLOCK;
        if several && next < len {
            let waited = moved.wait_timeout_while(seen, DEADLINE, |seen| *seen < next).unwrap();
            assert!(!waited.1.timed_out(), "nobody takes on block {next}");
        }
        Ok::<_, Infallible>(sample as f64)
    };
    let evaluated = Complexities::evaluate(len, complexity).unwrap();
    assert!(evaluated.as_slice().iter().copied().eq((0..len).map(|sample| sample as f64)));
}

#[test]
fn complexities_are_evaluated_once_and_kept() {
    let evaluated = AtomicUsize::new(0);
    let complexity = |sample: usize| {
        evaluated.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(sample as f64 / 3.0)
    };
    let path = file("kept");
    let first = Complexities::cached(&path, 1000, complexity).unwrap();
    assert_eq!(first, costs(&(0..1000).map(|sample| f64::from(sample) / 3.0).collect::<Vec<_>>()));
    let again = Complexities::cached(&path, 1000, complexity).unwrap();
    assert_eq!((again, evaluated.into_inner()), (first, 1000), "equal to the last bit");
    refused(
        Complexities::cached(&path, 999, |_| Ok::<_, Infallible>(1.0)),
        "has 1000 numbers instead of 999",
    );
    assert_eq!(
        fs::read_dir(path.parent().unwrap())
            .unwrap()
            .filter(|file| {
                file.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "part")
            })
            .count(),
        0
    );
}

#[cfg(target_os = "linux")]
#[test]
fn complexities_are_written_to_a_device_and_through_a_link_and_replace_neither() {
    use std::os::unix::fs::symlink;
    let [link, device, target] = ["link", "device", "target"].map(file);
    fs::write(&target, "7\n").unwrap();
    symlink(&target, &link).unwrap();
    symlink("/dev/full", &device).unwrap();
    costs(&[1.0, 2.5]).write(&link).unwrap();
    let full = costs(&[1.0]).write(&device);
    let stay = [&link, &device].map(|path| path.is_symlink());
    let text = fs::read_to_string(&target).unwrap();
    for path in [&link, &device, &target] {
        fs::remove_file(path).unwrap();
    }
    assert_eq!(stay, [true, true]);
    assert_eq!(text, "1\n2.5\n");
    refused(full, "No space left on device");
}
