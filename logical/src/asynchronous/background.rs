//! Operations in the background, such as averaging a model while its rank computes.

use super::pending::{DeliveryEnd, Pending, Promise};
use super::task;
use crate::encoding::Encoding;
use crate::runtime;
use crate::{Buffer, Communicator, DType, Error, Primitive, ReduceOp, Result, World};
use hexagram_physical::transport::Bell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// Floats of any type that are processed in the background. Hold the lock to read or write them.
pub type Model = Arc<Mutex<Buffer>>;

/// Outcome of an operation in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The difference was applied to the model, or the result was returned.
    Applied,
    /// All ranks agreed not to begin the operation. The model is unchanged.
    Aborted,
}

/// A thread that runs operations in the background, in the order in which they are posted.
///
/// With x the model, a posted operation `op` does
///
/// > s ← x; r ← op(s); x ← (x − s) + r
///
/// so that local changes to x during the operation are kept, and x = r if there are none. With the mean as the
/// operation, this is the asynchronous model average of Bagua (Gan et al., "BAGUA: scaling up distributed learning
/// with system relaxations", 2021). It preserves the sum of x over ranks, up to rounding.
///
/// *Steps*: the caller copies s under the lock of the model. The thread agrees with the other ranks that no rank
/// aborts, runs `op` on a separate communicator, and applies the difference under the lock. The caller waits for a
/// copy, or one pass over the model, at most. *Order*: the k-th operations of all ranks match; all ranks post the
/// same ones. Two simultaneous means of one model both correct the same differences, and overshoot: wait for a mean
/// before posting the next. *Bytes* sent per rank: those of `op`, and those of the agreement, an all-reduce of one
/// byte. *Memory*: s and r, 2 S for each posted operation, reused for later ones of equal size. *Determinism*: r is
/// as deterministic as `op`. The step at which the difference is applied is not deterministic, unless the rank waits.
///
/// *Failures*: an error ends all unfinished operations with that error, on all ranks. Dropping a `Background` waits
/// for the posted operations.
///
/// ```
/// use hexagram_logical::asynchronous::{Background, Model, Outcome};
/// use hexagram_logical::testing::spawn;
/// use hexagram_logical::{Buffer, TransportKind};
/// use std::sync::Mutex;
///
/// let ranks = spawn(TransportKind::Thread, 4, |comm| {
///     let background = comm.block_on(Background::start(&comm))?;
///     let model = Model::new(Mutex::new(Buffer::from_slice(&[comm.rank() as f32])?));
///     let averaged = background.post_mean(&model);
///     // … compute, and change the model under its lock …
///     assert_eq!(averaged.blocking()?, Outcome::Applied);
///     let mean = model.lock().unwrap().host::<f32>()?[0];
///     Ok(mean)
/// });
/// assert_eq!(ranks.unwrap(), [1.5; 4]);
/// ```
pub struct Background {
    world: World,
    /// `None` during the drop.
    queue: Option<Sender<QueueItem>>,
    /// Wakes the thread.
    bell: Arc<dyn Bell>,
    /// True if this rank wants to abort, and the other ranks have not been notified.
    aborting: Arc<AtomicBool>,
    spares: Arc<FreeBuffers>,
    ending: Arc<DeliveryEnd>,
    thread: Option<runtime::Thread>,
}

impl Background {
    /// Starts the thread, with another communicator of the ranks of `comm`. A collective call.
    ///
    /// # Errors
    /// As [`Communicator::channel`] and [`Channel::open`](crate::Channel::open); [`Error::System`] without a thread.
    pub fn start<'a>(comm: &'a Communicator) -> Primitive<'a, Self> {
        Box::pin(async move {
            let (queue, items) = channel();
            let flag = Buffer::zeroed(DType::U8, 1)?;
            let spares = Arc::default();
            let aborting: Arc<AtomicBool> = Arc::default();
            let ending = Arc::new(DeliveryEnd::new(died));
            let work = {
                let aborting = Arc::clone(&aborting);
                let ending = Arc::clone(&ending);
                async move |comm| Runner { comm, aborting, flag, skipping: false }.run(items, &ending).await
            };
            let (thread, bell) = task::start(comm, "hexagram-background", work).await?;
            let world = comm.world().clone();
            let queue = Some(queue);
            let thread = Some(thread);
            Ok(Background { world, queue, bell, aborting, spares, ending, thread })
        })
    }

    /// Posts an operation on a copy of the model, which it changes in place. The caller must not hold the lock of the
    /// model.
    ///
    /// # Errors
    /// [`Error::Busy`] if an operation writes the model, and [`Error::Usage`] unless it holds floats; neither posts
    /// an operation. Otherwise the error of this operation, or of an earlier one.
    pub fn post(
        &self,
        model: &Model,
        operation: impl AsyncFnOnce(&Communicator, &mut Buffer) -> Result<()> + Send + 'static,
    ) -> Pending<Outcome> {
        let snapshot = match self.snapshot(model) {
            Ok(snapshot) => snapshot,
            Err(error) => return Pending::failed(&self.ending, error),
        };
        let model = Arc::clone(model);
        let spares = Arc::clone(&self.spares);
        let averaged = async move |comm: &Communicator| {
            let mut result = spares.take(&snapshot)?;
            result.write_all()?.copy_from(&snapshot.read_all()?)?;
            operation(comm, &mut result).await?;
            apply(&lock(&model), &snapshot, &result)?;
            spares.put(snapshot);
            spares.put(result);
            Ok(())
        };
        let outcome = |done: Option<()>| if done.is_some() { Outcome::Applied } else { Outcome::Aborted };
        self.enqueue(averaged, outcome)
    }

    /// Posts an operation that owns its data, and returns its result. Use it if the caller applies the result itself.
    /// The operation keeps its place among the others.
    ///
    /// ```
    /// use hexagram_logical::asynchronous::Background;
    /// use hexagram_logical::testing::spawn;
    /// use hexagram_logical::{Buffer, ReduceOp, TransportKind};
    ///
    /// let ranks = spawn(TransportKind::Thread, 4, |comm| {
    ///     let background = comm.block_on(Background::start(&comm))?;
    ///     let mut buffer = Buffer::from_slice(&[comm.rank() as f32])?;
    ///     let sum = background.call(async move |comm| {
    ///         comm.all_reduce(&mut buffer, ReduceOp::Sum).await?;
    ///         Ok(buffer)
    ///     });
    ///     // … compute …
    ///     let sum = sum.blocking()?.map(|buffer| buffer.host::<f32>().map(|sum| sum[0]));
    ///     sum.transpose()
    /// });
    /// assert_eq!(ranks.unwrap(), [Some(6.0); 4]);
    /// ```
    ///
    /// The result is `None` if all ranks agreed not to begin the operation.
    ///
    /// # Errors
    /// The error of the operation, or of an earlier one.
    pub fn call<T: Send + 'static>(
        &self,
        operation: impl AsyncFnOnce(&Communicator) -> Result<T> + Send + 'static,
    ) -> Pending<Option<T>> {
        self.enqueue(operation, std::convert::identity)
    }

    /// Posts an all-reduce to the mean: the asynchronous model average.
    ///
    /// # Errors
    /// As [`Background::post`].
    pub fn post_mean(&self, model: &Model) -> Pending<Outcome> {
        self.post(model, async |comm, copy| comm.all_reduce(copy, ReduceOp::Mean).await)
    }

    /// Posts the mean in low precision, by [`Communicator::all_reduce_encoded`]. The mean deviates by the codec
    /// error, equally on all ranks, and so does the sum over ranks. Parameters change little between means, so that
    /// [`Feedback::Difference`](crate::encoding::Feedback::Difference) suits them.
    ///
    /// The operation holds the lock of the encoding; save the state of the encoding while no operation is running.
    ///
    /// # Errors
    /// As [`Background::post`].
    pub fn post_mean_encoded(&self, model: &Model, encoding: &Arc<Mutex<Encoding>>) -> Pending<Outcome> {
        let encoding = Arc::clone(encoding);
        #[allow(clippy::await_holding_lock, reason = "the thread has no other work")]
        let operation = async move |comm: &Communicator, copy: &mut Buffer| {
            let mut encoding = lock(&encoding);
            comm.all_reduce_encoded(copy, ReduceOp::Mean, &mut encoding).await
        };
        self.post(model, operation)
    }

    /// Aborts the operations that no rank has begun. A collective call, whatever each rank has posted.
    ///
    /// An operation that has begun on one rank is finished by all ranks. Later ones that were posted before this call
    /// are [`Outcome::Aborted`], on every rank. Returns when all of them have ended; operations posted afterwards run
    /// normally.
    ///
    /// # Errors
    /// The error that ended an operation.
    pub fn abort<'a>(&'a mut self) -> Primitive<'a> {
        Box::pin(async move {
            self.aborting.store(true, Ordering::Release);
            let (promise, aborted) = Pending::new(&self.ending);
            self.send(QueueItem::Abort(promise));
            aborted.await
        })
    }

    fn snapshot(&self, model: &Model) -> Result<Buffer> {
        let model = lock(model);
        if !model.dtype().is_float() {
            let what = format!("differences of {} are not applied in the background", model.dtype());
            return Err(Error::usage(what, "use a float type"));
        }
        let snapshot = self.spares.take(&model)?;
        snapshot.write_all()?.copy_from(&model.read_all()?)?;
        Ok(snapshot)
    }

    fn enqueue<T: Send + 'static, R: Send + 'static>(
        &self,
        operation: impl AsyncFnOnce(&Communicator) -> Result<T> + Send + 'static,
        outcome: fn(Option<T>) -> R,
    ) -> Pending<R> {
        let (promise, pending) = Pending::new(&self.ending);
        self.send(QueueItem::Work(Box::new(PostedOperation {
            operation: Some(operation),
            result: None,
            outcome,
            promise,
        })));
        pending
    }

    fn send(&self, item: QueueItem) {
        // A thread that has ended has stored its error, which the dropped promise returns.
        self.queue.as_ref().map(|queue| queue.send(item));
        self.bell.ring();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The other ranks may wait for an operation that this rank would have posted.
            self.world.health().fail_self("panicked");
        }
        self.queue = None;
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn died() -> Error {
    Error::usage("the background thread panicked", "see its panic message")
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Buffers of finished operations, for reuse.
#[derive(Default)]
struct FreeBuffers(Mutex<Vec<Buffer>>);

impl FreeBuffers {
    /// Returns a buffer like `served` on the same device, with any content.
    fn take(&self, served: &Buffer) -> Result<Buffer> {
        let mut spares = lock(&self.0);
        let fits = |spare: &Buffer| spare.dtype() == served.dtype() && spare.len() == served.len();
        match spares.iter().position(fits) {
            Some(at) => Ok(spares.swap_remove(at)),
            None => served.zeroed_same_device(served.dtype(), served.len()),
        }
    }

    fn put(&self, buffer: Buffer) {
        lock(&self.0).push(buffer);
    }
}

/// Command for the thread.
enum QueueItem {
    Work(Box<dyn QueuedOperation>),
    Abort(Promise<()>),
}

/// An operation, and the use of its result.
trait QueuedOperation: Send {
    fn run<'a>(&'a mut self, comm: &'a Communicator) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

    /// Delivers the result, or the abort if the operation has not run.
    fn finish(self: Box<Self>);
}

struct PostedOperation<F, T, R> {
    operation: Option<F>,
    result: Option<T>,
    outcome: fn(Option<T>) -> R,
    promise: Promise<R>,
}

impl<F, T, R> QueuedOperation for PostedOperation<F, T, R>
where
    F: AsyncFnOnce(&Communicator) -> Result<T> + Send,
    T: Send,
    R: Send,
{
    fn run<'a>(&'a mut self, comm: &'a Communicator) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> {
        Box::pin(async move {
            if let Some(operation) = self.operation.take() {
                self.result = Some(operation(comm).await?);
            }
            Ok(())
        })
    }

    fn finish(self: Box<Self>) {
        let PostedOperation { result, outcome, promise, .. } = *self;
        promise.complete(Ok(outcome(result)));
    }
}

/// The part of a `Background` that runs on its thread.
struct Runner {
    comm: Communicator,
    aborting: Arc<AtomicBool>,
    /// Buffer of one byte, with which ranks agree.
    flag: Buffer,
    /// True after the ranks have agreed to abort, until this rank reaches its own call of abort.
    skipping: bool,
}

impl Runner {
    /// Works until the queue is closed, or the first error.
    async fn run(mut self, items: Receiver<QueueItem>, ending: &DeliveryEnd) {
        while let Some(mut item) = next(&items).await {
            let start = runtime::now();
            let served = self.serve(&mut item).await;
            // Recorded before the waiting caller can read the record.
            self.comm.activity().ends(start, self.comm.world().traffic().bytes_sent());
            if let Err(error) = served {
                self.comm.give_up(&error);
                // Before the promises are dropped.
                return ending.fail(error);
            }
            match item {
                QueueItem::Work(work) => work.finish(),
                QueueItem::Abort(promise) => promise.complete(Ok(())),
            }
        }
    }

    async fn serve(&mut self, item: &mut QueueItem) -> Result<()> {
        let aborted = self.skipping || self.agree_to_abort().await?;
        self.skipping = aborted && matches!(item, QueueItem::Work(_));
        match item {
            QueueItem::Work(work) if !aborted => self.carry_out(&mut **work).await,
            QueueItem::Work(_) => Ok(()),
            QueueItem::Abort(_) => {
                self.aborting.store(false, Ordering::Release);
                Ok(())
            }
        }
    }

    /// Returns true if any rank aborts now. The result is the same on all ranks.
    async fn agree_to_abort(&mut self) -> Result<bool> {
        self.flag.host_mut::<u8>()?[0] = self.aborting.load(Ordering::Acquire).into();
        self.comm.all_reduce(&mut self.flag, ReduceOp::Max).await?;
        Ok(self.flag.host::<u8>()?[0] != 0)
    }

    async fn carry_out(&self, work: &mut dyn QueuedOperation) -> Result<()> {
        let mut work = work.run(&self.comm);
        let caught = |context: &mut Context<'_>| {
            let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
            polled.unwrap_or_else(|panic| {
                Poll::Ready(Err(Error::panicked("an operation in the background", &*panic)))
            })
        };
        poll_fn(caught).await
    }
}

/// Returns the next posted item; `None` if the queue is closed. The posting thread rings the bell.
async fn next(items: &Receiver<QueueItem>) -> Option<QueueItem> {
    poll_fn(|_| match items.try_recv() {
        Ok(item) => Poll::Ready(Some(item)),
        Err(TryRecvError::Empty) => Poll::Pending,
        Err(TryRecvError::Disconnected) => Poll::Ready(None),
    })
    .await
}

/// Elements of a pass that stay in the first-level cache for the next one.
const BLOCK: usize = 2048;

/// Applies a difference: `x ← (x − s) + r`.
fn apply(x: &Buffer, s: &Buffer, r: &Buffer) -> Result<()> {
    for start in (0..x.len()).step_by(BLOCK) {
        let block = start..x.len().min(start + BLOCK);
        let mut x = x.write(block.clone())?;
        x.add_scaled(-1.0, &s.read(block.clone())?)?;
        x.add_scaled(1.0, &r.read(block)?)?;
    }
    Ok(())
}
