//! Traces of a framework on a GPU: the times of passes, communication and optimizer are those of the execution on the
//! device, not of the enqueue.

use super::*;
use hexagram_algorithms::logical::Error;
use hexagram_algorithms::plugin::{About, Algorithm, Bucket, Context, Trigram};
use hexagram_algorithms::trace::{Kind, Place, RankTrace, Span, Trace};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Delay of enqueued work, on a driver that does nothing by itself.
const PAUSE: Duration = Duration::from_millis(20);

/// Mean of the gradients, which counts how often that of the first bucket was enqueued.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>);

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

impl Algorithm for Counted {
    type State = ();

    fn about(&self) -> About {
        About::new("counted", Trigram { centralized: true, synchronous: true, full_precision: true })
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        context.mean(&mut bucket.gradients).await?;
        if context.bucket() == 0 {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Owner of the optimizer that makes the steps.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Optimizer {
    Engine,
    Framework,
}

/// Trains, and returns the trace. In the backward pass a rank waits for its first bucket, after a pause.
fn traced(comm: &Communicator, gpu: Option<&Cuda>, optimizer: Optimizer) -> Result<Option<Trace>> {
    let framework = Framework::new(gpu, Without::Nothing)?;
    let counted = Counted::default();
    let queue = gpu.map_or_else(|| Ok(Queue::host()), Cuda::queue)?;
    let mut engine = engine(comm, counted.clone(), &queue)?;
    if let Some(exchange) = framework.exchange.clone() {
        engine.trace().stamp_passes(move || exchange.timestamp());
    }
    engine.trace().begin()?;
    for step in 0..STEPS {
        engine.forward()?;
        engine.begin(Mode::Synchronize)?;
        let hooks = engine.hooks();
        for index in (0..LENGTHS.len()).rev() {
            let gradient = framework.gradient(index, step + comm.rank())?;
            hooks.ready(index, &*framework.shared(gradient)?)?;
            // The last two variables fill the first bucket.
            if index == LENGTHS.len() - 2 {
                counted.wait_for(step);
                std::thread::sleep(PAUSE);
                queue.check()?;
            }
        }
        if optimizer == Optimizer::Engine {
            engine.finish_and_step_into(|_, _| Ok::<(), Error>(()))?;
        } else {
            engine.finish()?;
            framework.variables[2].0.write_all()?.scale(0.5)?;
            engine.stepped()?;
        }
        framework.give_back()?;
    }
    let trace = engine.trace().collect();
    framework.queue.check()?;
    trace
}

impl Counted {
    /// Waits until the mean of the first bucket in a step was enqueued.
    fn wait_for(&self, step: usize) {
        let started = Instant::now();
        while self.0.load(Ordering::SeqCst) <= step {
            assert!(started.elapsed() < Duration::from_secs(60), "nothing is enqueued");
            std::thread::yield_now();
        }
    }
}

/// Returns the trace of two ranks.
fn of_two(gpu: Option<&Cuda>, optimizer: Optimizer) -> Trace {
    let traces = spawn(TransportKind::Thread, 2, |comm| traced(&comm, gpu, optimizer));
    traces.unwrap().remove(0).unwrap()
}

/// Returns start and end of all spans with this place, kind and step, for one bucket if it is given.
fn times(rank: &RankTrace, place: Place, kind: Kind, step: u64, bucket: Option<usize>) -> [i64; 2] {
    let is_of_it = |span: &&Span| (span.place, span.kind, span.step) == (place, kind, step);
    let of_it = rank.spans.iter().filter(is_of_it);
    let of_it: Vec<&Span> = of_it.filter(|span| bucket.is_none_or(|bucket| span.bucket == bucket)).collect();
    let start = of_it.iter().map(|span| span.start).min();
    let end = of_it.iter().map(|span| span.end).max();
    [start.unwrap(), end.unwrap()]
}

/// Returns the maximum error of the times of a rank, including that of the driver and of f32.
fn error(rank: &RankTrace) -> i64 {
    rank.clock_error.as_nanos() as i64 + 2_000
}

/// Asserts that the device executed work after it was enqueued, at least `late` later, and in the order of its queues.
fn assert_in_order(rank: &RankTrace, late: Duration) {
    let error = error(rank);
    for step in 0..STEPS as u64 {
        let place = |place, kind, bucket| times(rank, place, kind, step, bucket);
        let first = place(Place::Device, Kind::GradientsReady, Some(0));
        let enqueued = place(Place::Host, Kind::GradientsReady, Some(0));
        let backward = place(Place::Device, Kind::Backward, None);
        assert!(enqueued[0] <= first[0] + error && first[0] <= first[1] + error, "{enqueued:?} {first:?}");
        assert!(enqueued[1] + late.as_nanos() as i64 <= first[1] + error, "{enqueued:?} {first:?}");
        // The gradients of the later bucket do not exist yet.
        assert!(backward[0] <= first[0] + error && first[1] <= backward[1] + error, "{backward:?} {first:?}");
        for bucket in 0..buckets(rank) {
            let mean = place(Place::Device, Kind::GradientsReady, Some(bucket));
            let enqueued = place(Place::Host, Kind::GradientsReady, Some(bucket));
            assert!(enqueued[1] <= mean[1] + error, "{enqueued:?} {mean:?}");
        }
    }
}

fn buckets(rank: &RankTrace) -> usize {
    1 + rank.spans.iter().map(|span| span.bucket).max().unwrap()
}

/// Asserts that the engine optimizer steps on a bucket after its mean, and that the framework is idle then.
fn assert_steps_of_engine(rank: &RankTrace) {
    for step in 0..STEPS as u64 {
        for bucket in 0..buckets(rank) {
            let place = |kind| times(rank, Place::Device, kind, step, Some(bucket));
            let [mean, stepped] = [Kind::GradientsReady, Kind::Optimizer].map(place);
            assert!(mean[1] <= stepped[0] + error(rank), "{mean:?} {stepped:?}");
        }
    }
    let by_framework =
        |span: &&Span| span.place == Place::Device && span.kind == Kind::Optimizer && span.bytes == 0;
    assert_eq!(rank.spans.iter().filter(by_framework).count(), 0);
}

#[test]
fn what_a_device_did_is_told_by_its_own_clock() {
    let Some(gpu) = gpu() else { return };
    let trace = of_two(Some(&gpu), Optimizer::Engine);
    for rank in &trace.ranks {
        assert_eq!(rank.dropped, 0);
        assert_in_order(rank, Duration::ZERO);
        assert_steps_of_engine(rank);
    }
    let mut text = Vec::new();
    trace.write(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("\"device: passes\"") && text.contains("\"device: bucket 1\""), "{text}");
}

#[test]
fn a_frameworks_optimizer_steps_on_its_own_stream() {
    let Some(gpu) = gpu() else { return };
    for rank in of_two(Some(&gpu), Optimizer::Framework).ranks {
        for step in 0..STEPS as u64 {
            let device = times(&rank, Place::Device, Kind::Optimizer, step, None);
            let backward = times(&rank, Place::Device, Kind::Backward, step, None);
            assert!(backward[1] <= device[0] + error(&rank), "{backward:?} {device:?}");
        }
        let of_buckets = |span: &&Span| span.kind == Kind::Optimizer && span.bytes > 0;
        assert_eq!(rank.spans.iter().filter(of_buckets).count(), 0);
    }
}

#[test]
fn a_host_tells_of_no_device() {
    for rank in of_two(None, Optimizer::Engine).ranks {
        assert!(rank.spans.iter().all(|span| span.place == Place::Host));
    }
}

#[test]
fn communication_lies_within_the_backward_pass_by_the_devices_clock() {
    let Some(_) = gpu().filter(|gpu| gpu.description().name.starts_with("Fake")) else { return };
    passes_on_a_late_driver("framework::traces::is_done_long_after_it_was_enqueued");
}

#[test]
#[ignore = "needs a driver that is as late as it may be"]
fn is_done_long_after_it_was_enqueued() {
    let gpu = Cuda::new(0).unwrap();
    let trace = of_two(Some(&gpu), Optimizer::Engine);
    for (rank, report) in trace.ranks.iter().zip(trace.report().ranks) {
        assert_in_order(rank, PAUSE);
        for (step, told) in report.steps.iter().enumerate() {
            let [start, end] = times(rank, Place::Device, Kind::GradientsReady, step as u64, Some(0));
            assert!(told.shares.overlapped as i64 + 2 * error(rank) >= end - start, "{told:?}");
            // The host had enqueued the pass long before.
            let [_, enqueued] = times(rank, Place::Host, Kind::GradientsReady, step as u64, Some(0));
            assert!(enqueued < start + error(rank) && told.end > enqueued, "{told:?}");
        }
    }
}
