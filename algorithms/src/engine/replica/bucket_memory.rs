//! The memory of the buckets, for a framework whose tensors are views of it.

use crate::engine::{DataParallel, hooks};
use hexagram_logical::{Result, Span};
use std::ops::Range;

/// Memory and layout of one bucket: see [`DataParallel::bucket_memory`].
///
/// ```text
/// between                              gradients in their bucket           parameters in theirs
/// ---------------------------------    --------------------------------    -------------------------------
/// forward, begin                       the framework's                     the framework reads
/// begin, ready_in_bucket(p)            that of p is the framework's        the framework reads
/// ready_in_bucket(p), finish           the engine's                        that of p is the engine's
/// finish, step or stepped              the framework's (its optimizer)     the framework's (its optimizer)
/// step or stepped, until it returns    the engine's                        the engine's
/// after that                           the framework's                     the framework's
///   with Overlap::Forward              the engine's until wait_for(p)      the engine's until wait_for(p)
/// any other call of DataParallel       the engine's, until it returns      the engine's, until it returns
/// ```
///
/// While the engine owns memory, its threads may write it: an access by the framework is a data race then. Algorithms
/// read parameters during the forward pass, and write them only while the engine owns them, as the table shows.
pub struct BucketMemory {
    /// Gradients of the bucket.
    pub gradients: Span,
    /// Parameters of the bucket, at the same offsets; `None` unless the [engine owns
    /// them](DataParallel::works_on_parameters).
    pub parameters: Option<Span>,
    /// Index of each parameter in the bucket, with the range of its elements, in row-major order. Parameters of 16 bits
    /// are stored in f32.
    pub members: Vec<(usize, Range<usize>)>,
}

impl DataParallel {
    /// Returns the memory of all buckets. The spans keep it alive. The table of [`BucketMemory`] states when their
    /// bytes may be accessed; accesses through an address are `unsafe`, and the caller must respect the table.
    ///
    /// The buckets are recreated by the first pass, by [`switch`](Self::switch), by loading a checkpoint and by
    /// autotune; and hooks may replace the buffer of a bucket, instead of copying, in any [`finish`](Self::finish),
    /// [`step`](Self::step) or [`settle`](Self::settle). When [`generation`](Self::generation) has changed, the values
    /// are in the new buffers, and the old memory is no longer in use.
    ///
    /// ```
    /// # use hexagram::logical::{DType, TransportKind, testing::spawn};
    /// # use hexagram::algorithms::{DataParallel, EngineOptions, GradientAllReduce, Mode, Parameter};
    /// # spawn(TransportKind::Thread, 2, |comm| {
    /// # let x = Parameter { name: "x".into(), dtype: DType::F32, shape: vec![2] };
    /// # let mut engine = DataParallel::new(&comm, vec![x], GradientAllReduce, EngineOptions::default())?;
    /// engine.initial().prepare()?;
    /// let memory = engine.bucket_memory()?;
    /// let gradient = memory[0].gradients.address().cast::<f32>();
    /// engine.begin(Mode::Synchronize)?;
    /// // SAFETY: there are two numbers, which the framework owns until they are ready.
    /// unsafe { gradient.write(comm.rank() as f32) };
    /// engine.hooks().ready_in_bucket(0)?;
    /// engine.finish()?;
    /// // SAFETY: the framework owns them again after `finish`.
    /// assert_eq!(unsafe { gradient.read() }, 0.5);
    /// # engine.stepped()
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`](hexagram_logical::Error::Usage) while the communication thread owns gradients or parameters.
    pub fn bucket_memory(&self) -> Result<Vec<BucketMemory>> {
        self.wait_for_all()?;
        let backward = hooks::lock(&self.backward);
        let replica = self.replica.borrow();
        let buckets = backward.plan().buckets().iter().enumerate();
        let memory = |(at, bucket): (usize, &crate::engine::plan::BucketPlan)| {
            Ok(BucketMemory {
                gradients: backward.buffer(at)?.span(),
                parameters: replica.parameters(at)?.map(|buffer| buffer.span()),
                members: bucket.members.clone(),
            })
        };
        buckets.map(memory).collect()
    }

    /// Returns a number that changes whenever [`bucket_memory`](Self::bucket_memory) does.
    pub fn generation(&self) -> u64 {
        hooks::lock(&self.backward).generation() + self.replica.borrow().moved()
    }
}
