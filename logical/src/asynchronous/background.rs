//! Operations in the background: a model is averaged, or anything else, while its rank goes on computing.

use super::companion;
use super::spares::copy_all;
use crate::encoding::Encoding;
use crate::runtime;
use crate::{Buffer, Communicator, DType, Device, Error, Host, ReduceOp, Result, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What is worked on in the background: floats, of any type. Whoever reads or writes them holds the lock.
pub type Model = Arc<Mutex<Buffer>>;

/// How an operation in the background ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its difference was applied to the model, or its result handed back.
    Applied,
    /// All ranks agreed not to begin it. The model is as it was.
    Aborted,
}

/// A thread that runs operations beside this one, in the order in which they are posted.
///
/// With x the model, an operation `op` that is posted does
///
/// > s ← x; r ← op(s); x ← (x − s) + r
///
/// so that what this rank adds to x meanwhile is kept, and x = r exactly if it adds nothing. With the mean as operation
/// this is the asynchronous model average of Bagua (Gan et al., "BAGUA: scaling up distributed learning with system
/// relaxations", 2021), which leaves the sum of x over ranks as it is, up to rounding.
///
/// *Steps*: the caller copies s under the model's lock; the thread has the ranks agree that nobody aborts, runs `op` on a
/// communicator of its own, and applies the difference under the lock again. The caller never waits for more than a copy,
/// or one pass over the model. *Order*: the k-th operation of a rank meets the k-th of every other; all ranks post the same
/// ones. Two means of one model that are under way together both make up for the same differences, and overshoot: post the
/// next when the last is done. *Bytes* sent per rank: those of `op`, and those of an all-reduce of one byte, by which ranks
/// agree. *Memory*: s and r, 2 S for each operation that is posted, kept for later ones of equal size. *Determinism*: r is
/// as deterministic as `op`; between which steps of this rank the difference is applied is not, unless the rank waits.
///
/// *Failures*: an error ends every operation that is not done, with that error, and is told to the other ranks. Dropping a
/// `Background` waits for what was posted.
///
/// ```
/// use hexagram_logical::asynchronous::{Background, Model, Outcome};
/// use hexagram_logical::testing::spawn;
/// use hexagram_logical::{Buffer, TransportKind};
/// use std::sync::Mutex;
///
/// let ranks = spawn(TransportKind::Thread, 4, |comm| {
///     let background = Background::start(&comm)?;
///     let model = Model::new(Mutex::new(Buffer::from_slice(&[comm.rank() as f32])?));
///     let averaged = background.post_mean(&model)?;
///     // … compute, and change the model under its lock …
///     assert_eq!(averaged.wait()?, Outcome::Applied);
///     let mean = model.lock().unwrap().host::<f32>()?[0];
///     Ok(mean)
/// });
/// assert_eq!(ranks.unwrap(), [1.5; 4]);
/// ```
pub struct Background {
    world: World,
    /// `None` once it is being dropped.
    queue: Option<Sender<Item>>,
    /// This rank wants to abort, and the others do not know yet.
    aborting: Arc<AtomicBool>,
    spares: Arc<Spares>,
    failure: Arc<OnceLock<Error>>,
    thread: Option<runtime::Thread>,
}

/// An operation that was posted.
#[derive(Debug)]
pub struct Handle {
    answer: Receiver<Outcome>,
    known: Option<Outcome>,
    failure: Arc<OnceLock<Error>>,
}

impl Handle {
    /// How the operation ended; `None` if it has not yet.
    ///
    /// # Errors
    /// The one that ended it, or an operation before it.
    pub fn poll(&mut self) -> Result<Option<Outcome>> {
        if self.known.is_none() {
            self.known = match self.answer.try_recv() {
                Ok(outcome) => Some(outcome),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return Err(ended(&self.failure)),
            };
        }
        Ok(self.known)
    }

    /// Waits until the operation has ended. Bounded by the deadlines of its messages.
    ///
    /// # Errors
    /// As [`Handle::poll`].
    pub fn wait(self) -> Result<Outcome> {
        match self.known {
            Some(outcome) => Ok(outcome),
            None => runtime::receive(&self.answer).map_err(|_| ended(&self.failure)),
        }
    }
}

/// An operation that hands its result back.
#[derive(Debug)]
pub struct Called<T> {
    handle: Handle,
    result: Receiver<T>,
}

impl<T> Called<T> {
    /// Whether it has ended, so that [`Called::wait`] does not wait.
    ///
    /// # Errors
    /// The one that ended it, or an operation before it.
    pub fn poll(&mut self) -> Result<bool> {
        Ok(self.handle.poll()?.is_some())
    }

    /// Waits for the result; `None` if all ranks agreed not to begin it. Bounded by the deadlines of its messages.
    ///
    /// # Errors
    /// As [`Called::poll`].
    pub fn wait(self) -> Result<Option<T>> {
        self.handle.wait()?;
        // It was sent before the handle was told.
        Ok(self.result.try_recv().ok())
    }
}

impl Background {
    /// Starts the thread, with a communicator of all ranks of the world. A collective call: they all make it.
    ///
    /// # Errors
    /// [`Error::Usage`] if `comm` is not of all ranks of the world, in their order; as [`Communicator::open`];
    /// [`Error::System`] if there can be no thread.
    pub fn start(comm: &Communicator) -> Result<Self> {
        let (queue, items) = channel();
        let flag = Buffer::zeroed(DType::U8, 1)?;
        let spares = Arc::default();
        let aborting = Arc::default();
        let failure = Arc::default();
        let shared = (Arc::clone(&aborting), Arc::clone(&failure));
        let thread = companion::start(comm, "hexagram-background", move |comm| {
            let (aborting, failure) = shared;
            Runner { comm, aborting, flag, skipping: false }.run(&items, &failure);
        })?;
        let world = comm.world().clone();
        let queue = Some(queue);
        let thread = Some(thread);
        Ok(Background { world, queue, aborting, spares, failure, thread })
    }

    /// Posts an operation on a copy of the model, which it changes in place. The caller must not hold the model's lock.
    ///
    /// # Errors
    /// [`Error::Busy`] if an operation writes the model; [`Error::Usage`] unless it holds floats; the error that ended an
    /// operation before. Nothing was posted.
    pub fn post(
        &self,
        model: &Model,
        operation: impl AsyncFnOnce(&Communicator, &mut Buffer) -> Result<()> + Send + 'static,
    ) -> Result<Handle> {
        let (model, snapshot, spares) = (Arc::clone(model), self.snapshot(model)?, Arc::clone(&self.spares));
        self.enqueue(Some(Box::new(move |comm| {
            let mut result = spares.take(snapshot.dtype(), snapshot.len())?;
            copy_all(&snapshot, &result)?;
            comm.block_on(operation(comm, &mut result))?;
            apply(&lock(&model), &snapshot, &result)?;
            spares.put(snapshot);
            spares.put(result);
            Ok(())
        })))
    }

    /// Posts an operation that owns all that it works on, and hands back what it returns: for whoever has the model to
    /// itself, and applies the result when it suits. It keeps its place among the others.
    ///
    /// ```
    /// use hexagram_logical::asynchronous::Background;
    /// use hexagram_logical::testing::spawn;
    /// use hexagram_logical::{Buffer, ReduceOp, TransportKind};
    ///
    /// let ranks = spawn(TransportKind::Thread, 4, |comm| {
    ///     let background = Background::start(&comm)?;
    ///     let mut buffer = Buffer::from_slice(&[comm.rank() as f32])?;
    ///     let sum = background.call(async move |comm| {
    ///         comm.all_reduce(&mut buffer, ReduceOp::Sum).await?;
    ///         Ok(buffer)
    ///     })?;
    ///     // … compute …
    ///     let sum = sum.wait()?.map(|buffer| buffer.host::<f32>().map(|sum| sum[0]));
    ///     sum.transpose()
    /// });
    /// assert_eq!(ranks.unwrap(), [Some(6.0); 4]);
    /// ```
    ///
    /// # Errors
    /// The error that ended an operation before. Nothing was posted.
    pub fn call<T: Send + 'static>(
        &self,
        operation: impl AsyncFnOnce(&Communicator) -> Result<T> + Send + 'static,
    ) -> Result<Called<T>> {
        let (results, result) = channel();
        let handle = self.enqueue(Some(Box::new(move |comm| {
            // Whoever has dropped its end does not want it.
            let _ = results.send(comm.block_on(operation(comm))?);
            Ok(())
        })))?;
        Ok(Called { handle, result })
    }

    /// Posts an all-reduce to the mean: the asynchronous model average.
    ///
    /// # Errors
    /// As [`Background::post`].
    pub fn post_mean(&self, model: &Model) -> Result<Handle> {
        self.post(model, async |comm, copy| comm.all_reduce(copy, ReduceOp::Mean).await)
    }

    /// Posts the same in low precision: [`Communicator::all_reduce_encoded`]. Its mean is off by the codec's error, equally on
    /// all ranks, and so is the sum over ranks. Parameters change little from one mean to the next, so that
    /// [`Feedback::Difference`](crate::encoding::Feedback::Difference) suits them.
    ///
    /// The encoding's lock is held while the operation is under way: ask for it, to save its state, when none is.
    ///
    /// # Errors
    /// As [`Background::post`].
    pub fn post_mean_encoded(&self, model: &Model, encoding: &Arc<Mutex<Encoding>>) -> Result<Handle> {
        let encoding = Arc::clone(encoding);
        #[allow(clippy::await_holding_lock, reason = "the thread has nothing else to do meanwhile")]
        let operation = async move |comm: &Communicator, copy: &mut Buffer| {
            let mut encoding = lock(&encoding);
            comm.all_reduce_encoded(copy, ReduceOp::Mean, &mut encoding).await
        };
        self.post(model, operation)
    }

    /// Gives up what no rank has begun. A collective call: all ranks make it, however much each of them has posted.
    ///
    /// An operation that has begun on one rank is finished by all. Those after it that were posted before this call are
    /// [`Outcome::Aborted`], on every rank. Returns when all of them have ended; what is posted afterwards is run as ever.
    ///
    /// # Errors
    /// The error that ended an operation.
    pub fn abort(&mut self) -> Result<()> {
        self.aborting.store(true, Ordering::Release);
        self.enqueue(None)?.wait().map(drop)
    }

    fn snapshot(&self, model: &Model) -> Result<Buffer> {
        let model = lock(model);
        if !model.dtype().is_float() {
            let what = format!("differences of {} are not applied in the background", model.dtype());
            return Err(Error::usage(what, "use a float type"));
        }
        let snapshot = self.spares.take(model.dtype(), model.len())?;
        copy_all(&model, &snapshot)?;
        Ok(snapshot)
    }

    fn enqueue(&self, posted: Option<Work>) -> Result<Handle> {
        let (answers, answer) = channel();
        let sent = self.queue.as_ref().is_some_and(|queue| queue.send(Item { posted, answers }).is_ok());
        if !sent {
            return Err(ended(&self.failure));
        }
        Ok(Handle { answer, known: None, failure: Arc::clone(&self.failure) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The others may wait in vain for what this rank would have posted.
            self.world.health().give_up("panicked");
        }
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ended(failure: &OnceLock<Error>) -> Error {
    let died = || Error::usage("the background thread panicked", "see its panic message");
    failure.get().cloned().unwrap_or_else(died)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Buffers of operations that are done, for those to come.
#[derive(Default)]
struct Spares(Mutex<Vec<Buffer>>);

impl Spares {
    /// A buffer that holds anything.
    fn take(&self, dtype: DType, len: usize) -> Result<Buffer> {
        let mut spares = lock(&self.0);
        let fits = |spare: &Buffer| (spare.dtype(), spare.len()) == (dtype, len);
        match spares.iter().position(fits) {
            Some(at) => Ok(spares.swap_remove(at)),
            None => Host.alloc(dtype, len),
        }
    }

    fn put(&self, buffer: Buffer) {
        lock(&self.0).push(buffer);
    }
}

/// Carries an operation out, with all that is done to its result.
type Work = Box<dyn FnOnce(&Communicator) -> Result<()> + Send>;

/// What the thread is asked for.
struct Item {
    /// `None` asks to abort.
    posted: Option<Work>,
    answers: Sender<Outcome>,
}

/// The thread's side.
struct Runner {
    comm: Communicator,
    aborting: Arc<AtomicBool>,
    /// One byte, by which ranks agree.
    flag: Buffer,
    /// The ranks have agreed to abort, and this one has not come to where it does.
    skipping: bool,
}

impl Runner {
    /// Works until nothing can be posted any more, or the first error.
    fn run(mut self, items: &Receiver<Item>, failure: &OnceLock<Error>) {
        for Item { posted, answers } in items {
            let start = runtime::now();
            let served = self.serve(posted);
            // Before whoever waits for it asks what was done.
            self.comm.activity().ends(start, self.comm.world().traffic().bytes_sent());
            match served {
                // Whoever has dropped the handle does not ask.
                Ok(outcome) => drop(answers.send(outcome)),
                Err(error) => {
                    self.comm.give_up(&error);
                    // Before the handles learn that no answer comes.
                    let _ = failure.set(error);
                    return;
                }
            }
        }
    }

    fn serve(&mut self, posted: Option<Work>) -> Result<Outcome> {
        let aborted = self.skipping || self.agree_to_abort()?;
        self.skipping = aborted && posted.is_some();
        match posted {
            Some(posted) if !aborted => self.carry_out(posted),
            Some(_) => Ok(Outcome::Aborted),
            None => {
                self.aborting.store(false, Ordering::Release);
                Ok(Outcome::Aborted)
            }
        }
    }

    /// Whether any rank aborts now. All ranks hear the same.
    fn agree_to_abort(&mut self) -> Result<bool> {
        self.flag.host_mut::<u8>()?[0] = self.aborting.load(Ordering::Acquire).into();
        self.comm.block_on(self.comm.all_reduce(&mut self.flag, ReduceOp::Max))?;
        Ok(self.flag.host::<u8>()?[0] != 0)
    }

    fn carry_out(&self, work: Work) -> Result<Outcome> {
        catch_unwind(AssertUnwindSafe(|| work(&self.comm)))
            .unwrap_or_else(|panic| Err(Error::panicked("an operation in the background", &*panic)))?;
        Ok(Outcome::Applied)
    }
}

/// Elements of a pass that stay in the first-level cache for the next.
const BLOCK: usize = 2048;

/// `x ← (x − s) + r`.
fn apply(x: &Buffer, s: &Buffer, r: &Buffer) -> Result<()> {
    for start in (0..x.len()).step_by(BLOCK) {
        let block = start..x.len().min(start + BLOCK);
        let mut x = x.write(block.clone())?;
        Host.add_scaled(-1.0, &s.read(block.clone())?, &mut x)?;
        Host.add_scaled(1.0, &r.read(block)?, &mut x)?;
    }
    Ok(())
}
