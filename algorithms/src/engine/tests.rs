//! The engine: plans, overlap, order, accumulation, and that no gradient is ever silently left out.

use super::plan::Plan;
use super::*;
use crate::gradient_all_reduce::GradientAllReduce;
use crate::plugin::Bucket;
use crate::plugin::Context;
use crate::plugin::{Algorithm, Buckets, Trigram};
use hexagram_logical::codec::Half;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::spawn;
use hexagram_logical::{HEADER_BYTES, NOTICE_BYTES, ReduceOp, TransportKind};
use std::sync::atomic::{AtomicUsize, Ordering};

fn parameter(name: &str, dtype: DType, len: usize) -> Parameter {
    Parameter { name: name.to_owned(), dtype, shape: vec![len] }
}

/// `count` parameters of `len` f32 each.
fn parameters(count: usize, len: usize) -> Vec<Parameter> {
    (0..count).map(|index| parameter(&format!("p{index}"), DType::F32, len)).collect()
}

fn options(first: usize, others: usize) -> EngineOptions {
    EngineOptions {
        first_bucket_bytes: first,
        bucket_bytes: others,
        order: Order::Listed,
        ..EngineOptions::default()
    }
}

fn engine(comm: &Communicator, parameters: Vec<Parameter>, options: EngineOptions) -> Result<DataParallel> {
    DataParallel::new(comm, parameters, Arc::new(GradientAllReduce), options)
}

fn gradient(engine: &DataParallel, parameter: usize) -> Vec<f32> {
    bytemuck_f32(engine.gradient(parameter).unwrap().bytes())
}

fn bytemuck_f32(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn plans_reverse_parameters_and_begin_with_a_small_bucket() {
    let plan = Plan::new(parameters(6, 100), &options(400, 1000), Buckets::BySize);
    let members: Vec<Vec<usize>> = plan
        .buckets()
        .iter()
        .map(|bucket| bucket.members.iter().map(|(index, _)| *index).collect())
        .collect();
    assert_eq!(members, [vec![5], vec![4, 3], vec![2, 1], vec![0]]);
}

#[test]
fn plans_cover_every_element_once_and_never_mix_types() {
    let mixed: Vec<Parameter> = (0..50)
        .map(|index| parameter("p", [DType::F32, DType::BF16, DType::F64][index % 3], index * index))
        .collect();
    let plan = Plan::new(mixed.clone(), &options(100, 4000), Buckets::BySize);
    let mut seen = vec![0; mixed.len()];
    for bucket in plan.buckets() {
        let mut end = 0;
        for (index, range) in &bucket.members {
            assert_eq!((mixed[*index].dtype, mixed[*index].len()), (bucket.dtype, range.len()));
            assert_eq!(range.start, end);
            end = range.end;
            seen[*index] += 1;
        }
        assert_eq!(end, bucket.len);
        assert!(bucket.members.len() == 1 || bucket.len * bucket.dtype.size() <= 4000);
    }
    assert_eq!(seen, vec![1; mixed.len()]);
    let completed_by = |bucket: &super::plan::BucketPlan| bucket.members.last().unwrap().0;
    assert!(plan.buckets().is_sorted_by_key(|bucket| std::cmp::Reverse(completed_by(bucket))));
}

#[test]
fn gradients_become_their_mean_over_many_steps() {
    for transport in TransportKind::ALL {
        spawn(transport, 3, |comm| {
            let mut engine = engine(&comm, parameters(7, 1000), options(4000, 9000))?;
            let hooks = engine.hooks();
            for step in 0..5 {
                engine.begin(Mode::Synchronize)?;
                for index in (0..7).rev() {
                    hooks.ready_slice(index, &vec![(comm.rank() * 3 + index + step) as f32; 1000])?;
                }
                engine.finish()?;
                for index in 0..7 {
                    assert_eq!(gradient(&engine, index), vec![(3 + index + step) as f32; 1000]);
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn the_first_bucket_is_on_its_way_before_the_last_gradient_is_ready() {
    for transport in TransportKind::ALL {
        spawn(transport, 2, |comm| {
            let mut engine = engine(&comm, parameters(4, 1000), options(4000, 4000))?;
            let hooks = engine.hooks();
            let sent = || comm.world().traffic().bytes_sent();
            let before = sent();
            engine.begin(Mode::Synchronize)?;
            hooks.ready_slice(3, &[1.0f32; 1000])?;
            // All of the first bucket's bytes leave while three gradients are still missing; the deadline is the test's.
            let shared = matches!(transport, TransportKind::Shm | TransportKind::Mixed);
            let bucket = 4000 + if shared { NOTICE_BYTES } else { HEADER_BYTES } as u64;
            let started = Instant::now();
            while sent() - before < bucket {
                assert!(
                    started.elapsed() < Duration::from_secs(30),
                    "nothing was sent before the last gradient"
                );
                std::thread::yield_now();
            }
            assert_eq!(sent() - before, bucket, "and nothing of the buckets that are not complete");
            for index in (0..3).rev() {
                hooks.ready_slice(index, &[1.0f32; 1000])?;
            }
            engine.finish()
        })
        .unwrap();
    }
}

#[test]
fn ranks_may_complete_buckets_in_any_order() {
    spawn(TransportKind::Shm, 4, |comm| {
        let mut engine = engine(&comm, parameters(8, 500), options(2000, 2000))?;
        let hooks = engine.hooks();
        for step in 0..20 {
            engine.begin(Mode::Synchronize)?;
            for at in 0..8 {
                let index = (at * 3 + comm.rank() * 5 + step) % 8;
                hooks.ready_slice(index, &vec![(index + comm.rank()) as f32; 500])?;
            }
            engine.finish()?;
            for index in 0..8 {
                assert_eq!(gradient(&engine, index)[0], index as f32 + 1.5);
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_unused_parameter_is_an_error_that_names_it_on_every_rank() {
    for transport in TransportKind::ALL {
        let step = |comm: &Communicator| {
            let mut engine = engine(comm, parameters(3, 10), options(40, 40))?;
            let hooks = engine.hooks();
            engine.begin(Mode::Synchronize)?;
            for index in [2, 1, 0] {
                if comm.rank() != 1 || index != 1 {
                    hooks.ready_slice(index, &[1.0f32; 10])?;
                }
            }
            engine.finish()
        };
        // The verdict may find a slow rank anywhere, even before its first step.
        let errors = spawn(transport, 3, |comm| Ok(step(&comm).err()));
        for (rank, error) in errors.unwrap().into_iter().enumerate() {
            let text = error.unwrap().to_string();
            assert!(text.contains("`p1`"), "{transport}, rank {rank}: {text}");
        }
    }
}

#[test]
fn an_unused_parameter_counts_as_zero_when_asked() {
    spawn(TransportKind::Thread, 2, |comm| {
        let options = EngineOptions { unused: Unused::Zero, ..options(40, 40) };
        let mut engine = engine(&comm, parameters(3, 10), options)?;
        let hooks = engine.hooks();
        for step in 0..3 {
            engine.begin(Mode::Synchronize)?;
            for index in 0..3 {
                // Parameter 1 on rank 0 only, parameter 2 nowhere.
                if index == 0 || index == 1 && comm.rank() == 0 {
                    hooks.ready_slice(index, &[(4 + step) as f32; 10])?;
                }
            }
            engine.finish()?;
            let want = [(4 + step) as f32, (4 + step) as f32 / 2.0, 0.0];
            for (index, want) in want.into_iter().enumerate() {
                assert_eq!(gradient(&engine, index), vec![want; 10], "no leftover of the last step");
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn accumulated_passes_send_nothing_and_count_in_the_next_synchronized_one() {
    for transport in TransportKind::ALL {
        spawn(transport, 2, |comm| {
            let mut engine = engine(&comm, parameters(2, 5), options(20, 20))?;
            let hooks = engine.hooks();
            let pass = |engine: &mut DataParallel, mode, value: f32| {
                engine.begin(mode)?;
                for index in [1, 0] {
                    hooks.ready_slice(index, &[value + comm.rank() as f32; 5])?;
                }
                engine.finish()
            };
            for _ in 0..2 {
                let before = comm.world().traffic().bytes_sent();
                pass(&mut engine, Mode::Accumulate, 1.0)?;
                pass(&mut engine, Mode::Accumulate, 10.0)?;
                assert_eq!(comm.world().traffic().bytes_sent(), before);
                assert!(engine.gradient(0).is_err(), "an unsynchronized gradient is not handed out");
                pass(&mut engine, Mode::Synchronize, 100.0)?;
                assert_eq!(gradient(&engine, 0), [112.5; 5]);
            }
            // A parameter that only an accumulating pass reached still counts.
            engine.begin(Mode::Accumulate)?;
            hooks.ready_slice(0, &[1.0f32; 5])?;
            engine.finish()?;
            engine.begin(Mode::Synchronize)?;
            hooks.ready_slice(1, &[2.0f32; 5])?;
            engine.finish()?;
            assert_eq!((gradient(&engine, 0)[0], gradient(&engine, 1)[0]), (1.0, 2.0));
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn mixed_types_and_large_parameters_are_synchronized() {
    spawn(TransportKind::Tcp, 2, |comm| {
        let list = vec![
            parameter("w", DType::F64, 30_000),
            parameter("b", DType::F32, 3),
            parameter("none", DType::F32, 0),
            parameter("v", DType::F64, 1),
        ];
        let mut engine = engine(&comm, list, options(64, 64))?;
        let hooks = engine.hooks();
        engine.begin(Mode::Synchronize)?;
        hooks.ready_slice(3, &[comm.rank() as f64])?;
        hooks.ready_slice::<f32>(2, &[])?;
        hooks.ready_slice(1, &[comm.rank() as f32; 3])?;
        hooks.ready_slice(0, &vec![comm.rank() as f64; 30_000])?;
        engine.finish()?;
        assert_eq!(engine.gradient(3).unwrap().bytes(), 0.5f64.to_le_bytes());
        assert_eq!(gradient(&engine, 1), [0.5; 3]);
        assert_eq!(engine.gradient(0).unwrap().bytes(), 0.5f64.to_le_bytes().repeat(30_000));
        Ok(())
    })
    .unwrap();
}

#[test]
fn misuse_of_hooks_is_refused_by_name() {
    spawn(TransportKind::Thread, 1, |comm| {
        let mut engine = engine(&comm, parameters(2, 4), options(16, 16))?;
        let hooks = engine.hooks();
        let refused = |outcome: Result<()>, what: &str| {
            let text = outcome.unwrap_err().to_string();
            assert!(text.contains(what), "{text}");
        };
        refused(hooks.ready_slice(0, &[0.0f32; 4]), "`p0` got a gradient outside a backward pass");
        engine.begin(Mode::Synchronize)?;
        refused(hooks.ready_slice(0, &[0.0f32; 3]), "`p0` has a gradient of 3 × f32");
        refused(hooks.ready_slice(0, &[0.0f64; 4]), "`p0` has a gradient of 4 × f64");
        refused(hooks.ready_slice(7, &[0.0f32; 4]), "no parameter 7");
        hooks.ready_slice(0, &[0.0f32; 4])?;
        refused(hooks.ready_slice(0, &[0.0f32; 4]), "`p0` was marked ready twice");
        refused(engine.begin(Mode::Synchronize), "began before the last one was finished");
        drop(engine);
        refused(hooks.ready_slice(1, &[0.0f32; 4]), "the engine is gone");
        Ok(())
    })
    .unwrap();
}

#[test]
fn ranks_with_different_models_are_told_before_the_first_step() {
    let errors = spawn(TransportKind::Shm, 3, |comm| {
        let count = if comm.rank() == 2 { 5 } else { 4 };
        Ok(engine(&comm, parameters(count, 10), EngineOptions::default()).err())
    });
    for error in errors.unwrap() {
        let text = error.unwrap().to_string();
        assert!(text.contains("4 parameters of 40 elements") && text.contains("rank 2 has 5"), "{text}");
    }
}

/// Fails on one rank, at one step.
#[derive(Debug)]
struct Fails {
    steps: AtomicUsize,
    rank: usize,
}

impl Algorithm for Fails {
    type State = ();

    fn name(&self) -> &'static str {
        "fails"
    }

    fn trigram(&self) -> Trigram {
        Algorithm::trigram(&GradientAllReduce)
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        if context.rank() == self.rank && self.steps.fetch_add(1, Ordering::SeqCst) == 2 {
            return Err(Error::usage("the plugin did not like it", "write a better one"));
        }
        context.comm().all_reduce(&mut bucket.gradients, ReduceOp::Sum).await
    }
}

#[test]
fn a_plugins_error_reaches_the_training_loop_of_every_rank() {
    for transport in TransportKind::ALL {
        let steps = spawn(transport, 3, |comm| {
            let algorithm = Arc::new(Fails { steps: AtomicUsize::new(0), rank: 1 });
            let mut engine =
                DataParallel::new(&comm, parameters(1, 10), algorithm, EngineOptions::default())?;
            let hooks = engine.hooks();
            for step in 0.. {
                let mut pass = || {
                    engine.begin(Mode::Synchronize)?;
                    hooks.ready_slice(0, &[1.0f32; 10])?;
                    engine.finish()
                };
                if let Err(error) = pass() {
                    let text = error.to_string();
                    assert!(text.contains("the plugin did not like it"), "rank {}: {text}", comm.rank());
                    return Ok(step);
                }
            }
            Ok(0)
        });
        // The verdict may find another rank at the end of the step before.
        let steps = steps.unwrap();
        assert!(steps[1] == 2 && steps.iter().all(|step| (1..=2).contains(step)), "{transport}: {steps:?}");
    }
}

/// Encodes what cannot all be encoded.
#[derive(Debug)]
struct Encodes;

impl Algorithm for Encodes {
    type State = Encoding;

    fn name(&self) -> &'static str {
        "encodes"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: true, synchronous: true, full_precision: false }
    }

    async fn state(&self, context: &Context, _: &Bucket) -> Result<Encoding> {
        Ok(context.encoding(Arc::new(Half::F16), Feedback::None))
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        encoding: &mut Encoding,
        bucket: &mut Bucket,
    ) -> Result<()> {
        context.mean_encoded(&mut bucket.gradients, encoding).await
    }
}

#[test]
fn an_element_that_cannot_be_encoded_is_named_by_rank_tensor_and_index() {
    for transport in TransportKind::ALL {
        let step = |comm: &Communicator| {
            let mut engine = DataParallel::new(comm, parameters(4, 10), Arc::new(Encodes), options(40, 80))?;
            let hooks = engine.hooks();
            engine.begin(Mode::Synchronize)?;
            for index in (0..4).rev() {
                let mut gradient = [1.0f32; 10];
                gradient[7] = if comm.rank() == 2 && index == 1 { f32::NAN } else { 1.0 };
                hooks.ready_slice(index, &gradient)?;
            }
            engine.finish()
        };
        let errors = spawn(transport, 3, |comm| Ok(step(&comm).err())).unwrap();
        for (rank, error) in errors.into_iter().map(Option::unwrap).enumerate() {
            match error {
                Error::NotFinite { place, tensor: Some(tensor), index, .. } => {
                    assert_eq!((rank, place.rank, &*tensor, index), (2, 2, "p1", 7), "{transport}");
                }
                other => assert!(rank != 2 && other.to_string().contains("is NaN on rank 2"), "{other}"),
            }
        }
    }
}

/// Panics on rank 1.
#[derive(Debug)]
struct Panics;

impl Algorithm for Panics {
    type State = ();

    fn name(&self) -> &'static str {
        "panics"
    }

    fn trigram(&self) -> Trigram {
        Algorithm::trigram(&GradientAllReduce)
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<()> {
        Ok(())
    }

    async fn gradients_ready(&self, context: &Context, (): &mut (), bucket: &mut Bucket) -> Result<()> {
        assert!(context.rank() != 1, "on purpose");
        context.comm().all_reduce(&mut bucket.gradients, ReduceOp::Sum).await
    }
}

#[test]
fn a_plugins_panic_is_an_error_on_every_rank() {
    let step = |comm: &Communicator| {
        let mut engine =
            DataParallel::new(comm, parameters(1, 10), Arc::new(Panics), EngineOptions::default())?;
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(0, &[1.0f32; 10])?;
        engine.finish()
    };
    for error in spawn(TransportKind::Shm, 3, |comm| Ok(step(&comm).err())).unwrap() {
        let text = error.unwrap().to_string();
        assert!(text.contains("the algorithm panicked: on purpose"), "{text}");
    }
}

#[test]
fn a_deadline_set_late_holds_for_gradients_too() {
    let errors = spawn(TransportKind::Shm, 2, |comm| {
        let mut engine = engine(&comm, parameters(1, 10), EngineOptions::default())?;
        comm.set_deadline(Duration::from_millis(100));
        if comm.rank() == 1 {
            // Alive, but not in this operation, until rank 0 has given up.
            let started = Instant::now();
            while comm.world().health().verdict().is_none() {
                assert!(started.elapsed() < Duration::from_secs(30), "rank 0 never gave up");
                std::thread::yield_now();
            }
            return Ok(None);
        }
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(0, &[1.0f32; 10])?;
        Ok(engine.finish().err())
    });
    let error = errors.unwrap().remove(0).unwrap();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
}

/// Lets bucket 0 wait until bucket 1 has been communicated.
#[derive(Debug)]
struct SlowFirst {
    second_is_done: AtomicUsize,
}

impl Algorithm for SlowFirst {
    type State = usize;

    fn name(&self) -> &'static str {
        "slow-first"
    }

    fn trigram(&self) -> Trigram {
        Algorithm::trigram(&GradientAllReduce)
    }

    async fn state(&self, _: &Context, bucket: &Bucket) -> Result<usize> {
        Ok(bucket.len())
    }

    async fn gradients_ready(&self, context: &Context, len: &mut usize, bucket: &mut Bucket) -> Result<()> {
        if *len == 1 {
            std::future::poll_fn(|_| match self.second_is_done.load(Ordering::SeqCst) {
                0 => std::task::Poll::Pending,
                _ => std::task::Poll::Ready(()),
            })
            .await;
        }
        context.comm().all_reduce(&mut bucket.gradients, ReduceOp::Sum).await?;
        self.second_is_done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn a_slow_bucket_does_not_keep_the_next_from_starting() {
    spawn(TransportKind::Shm, 2, |comm| {
        let list = vec![parameter("second", DType::F32, 2), parameter("first", DType::F32, 1)];
        let algorithm = Arc::new(SlowFirst { second_is_done: AtomicUsize::new(0) });
        let mut engine = DataParallel::new(&comm, list, algorithm, options(4, 8))?;
        assert_eq!(engine.buckets(), [(DType::F32, 1), (DType::F32, 2)]);
        engine.begin(Mode::Synchronize)?;
        engine.hooks().ready_slice(1, &[1.0f32])?;
        engine.hooks().ready_slice(0, &[1.0f32; 2])?;
        engine.finish()
    })
    .unwrap();
}

#[test]
fn an_abandoned_pass_ends_the_others_instead_of_hanging_them() {
    let step = |comm: &Communicator| {
        let mut engine = engine(comm, parameters(1, 10), EngineOptions::default())?;
        engine.begin(Mode::Synchronize)?;
        if comm.rank() == 0 {
            return Ok(());
        }
        engine.hooks().ready_slice(0, &[1.0f32; 10])?;
        engine.finish()
    };
    let errors = spawn(TransportKind::Shm, 2, |comm| Ok(step(&comm).err()));
    let text = errors.unwrap().remove(1).unwrap().to_string();
    assert!(text.contains("rank 0") && text.contains("never finished"), "{text}");
}

#[test]
fn tensors_are_broadcast_from_rank_0() {
    spawn(TransportKind::Tcp, 3, |comm| {
        let engine = engine(&comm, parameters(1, 1), EngineOptions::default())?;
        let mut tensor = Buffer::from_slice(&[comm.rank() as f32 + 7.0; 100])?;
        engine.broadcast(&mut tensor)?;
        assert_eq!(*tensor.host::<f32>()?, [7.0; 100]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn no_parameters_are_no_problem() {
    spawn(TransportKind::Thread, 2, |comm| {
        let mut engine = engine(&comm, Vec::new(), EngineOptions::default())?;
        engine.begin(Mode::Synchronize)?;
        engine.finish()
    })
    .unwrap();
}
