//! The memory of the buckets, for a framework whose tensors are views of it.

use super::{DataParallel, hooks};
use hexagram_logical::{Result, Span};
use std::ops::Range;

/// Memory of one bucket, and what lies where in it: see [`DataParallel::bucket_memory`].
///
/// ```text
/// between                              gradients in their bucket           parameters in theirs
/// ---------------------------------    --------------------------------    -------------------------------
/// forward, begin                       the framework's                     the framework reads
/// begin, ready_as_it_lies(p)           that of p is the framework's        the framework reads
/// ready_as_it_lies(p), finish          the engine's                        that of p is the engine's
/// finish, step or stepped              the framework's (its optimizer)     the framework's (its optimizer)
/// step or stepped, until it returns    the engine's                        the engine's
/// after that                           the framework's                     the framework's
///   with Overlap::Forward              the engine's until wait_for(p)      the engine's until wait_for(p)
/// any other call of DataParallel       the engine's, until it returns      the engine's, until it returns
/// ```
///
/// Where something is the engine's, other threads may be writing it: a framework that touches it then has a data race.
/// Algorithms read parameters beside the forward pass, and write them only where the table gives them to the engine.
pub struct BucketMemory {
    /// Gradients of the bucket.
    pub gradients: Span,
    /// Parameters of the bucket, in the same places; `None` unless the
    /// [engine has them](DataParallel::works_on_parameters).
    pub parameters: Option<Span>,
    /// Numbers of the parameters in the bucket, each with its elements there, row by row. Those of 16 bits lie there
    /// in f32.
    pub members: Vec<(usize, Range<usize>)>,
}

impl DataParallel {
    /// Returns the memory of all buckets. The spans keep it; when their bytes may be touched is said in the table of
    /// [`BucketMemory`], and it is `unsafe` of whoever follows an address to keep to that.
    ///
    /// The buckets are made anew by the first pass, by [`switch`](Self::switch), by loading a checkpoint and by
    /// autotune; and hooks may put another buffer in the place of a bucket's, rather than copy, in any
    /// [`finish`](Self::finish), [`step`](Self::step) or [`settle`](Self::settle). As soon as
    /// [`generation`](Self::generation) has changed, what was there is in the new ones, and the old memory means nothing
    /// any more.
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
    /// // SAFETY: there are two numbers, which are the framework's until they are ready.
    /// unsafe { gradient.write(comm.rank() as f32) };
    /// engine.hooks().ready_as_it_lies(0)?;
    /// engine.finish()?;
    /// // SAFETY: they are again, after `finish`.
    /// assert_eq!(unsafe { gradient.read() }, 0.5);
    /// # engine.stepped()
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`Error::Usage`](hexagram_logical::Error::Usage) while the communication thread has gradients or parameters.
    pub fn bucket_memory(&self) -> Result<Vec<BucketMemory>> {
        self.wait_for_all()?;
        let backward = hooks::lock(&self.backward);
        let replica = self.replica.borrow();
        let buckets = backward.plan().buckets().iter().enumerate();
        let memory = |(at, bucket): (usize, &super::plan::BucketPlan)| {
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
