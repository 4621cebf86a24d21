//! The service: one thread per rank that answers requests of other ranks while this rank computes. Windows, pair
//! exchanges, servers and clocks are built on it.
//!
//! To write a further primitive of this kind, implement `Handler` for incoming requests, and send requests with
//! `Service::submit` and `Dispatcher::ask`.
//!
//! | file | content |
//! |---|---|
//! | `worker` | the loop of the service thread |
//! | `dispatcher` | the protocol; `outgoing` is its requesting half, `incoming` its serving half |
//! | `wire` | requests and replies as bytes |
//! | `handler` | the trait of primitives, which answer requests |
//! | `task_lock` | state shared by the program and the service thread |
//! | `agree` | agreement of the ranks before they create a primitive |

mod agree;
mod dispatcher;
mod handler;
mod incoming;
mod outgoing;
mod task_lock;
#[cfg(test)]
mod tests;
mod wire;
mod worker;

pub(super) use agree::{agree, check, tell_everyone};
pub(super) use dispatcher::{Dispatcher, OutgoingRequest, Response, request_label};
pub(super) use handler::{ElementsPayload, Handler, ReceivedPayload, Reply, Served, ServiceMember};
pub(super) use task_lock::{SharedGuard, TaskLock};
pub use wire::{INLINE_BYTES, REPLY_BYTES, REQUEST_BYTES};
pub(super) use wire::{Request, violation};

use super::pending::{DeliveryEnd, Pending};
use super::task;
use crate::{Communicator, Error, Primitive, Result, World, runtime};
use dispatcher::Handlers;
use hexagram_physical::transport::Bell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use worker::{ServiceTask, StartTask, Worker};

/// Thread of a rank that answers requests of other ranks to its windows, pair exchanges, servers and clocks. Cheap to
/// clone.
///
/// The thread has its own connections, and sleeps while it has no requests. Requests between two ranks are served in
/// order, separately for each window or server; the programs of the ranks take no part in the answers. An error of
/// any request ends the service on every rank.
///
/// # Ending
/// [`Service::close`], or the drop of the last clone, waits until every rank has closed its service, and serves the
/// other ranks until then. A failed rank ends the wait with an error that names it. Close the service before anything
/// else that other ranks may wait for, such as the communicator.
///
/// A rank that ends early, with its own error, must call [`Communicator::give_up`] before it drops its service.
/// Otherwise the ranks wait for each other until the operation deadline.
///
/// ```
/// # use hexagram_logical::testing::spawn;
/// # use hexagram_logical::{Buffer, TransportKind};
/// # use hexagram_logical::asynchronous::{Service, Window};
/// # spawn(TransportKind::Thread, 3, |comm| {
/// let service = comm.block_on(Service::start(&comm))?;
/// let value = Buffer::from_slice(&[comm.rank() as f32])?;
/// let previous = (comm.rank() + 2) % 3;
/// let window = comm.block_on(Window::create(&comm, &service, &value, &[previous], None))?;
/// // … puts and gets, which the other rank's service answers …
/// # let _ = window;
/// comm.block_on(service.close())?;
/// # Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Service(Arc<ServiceInner>);

struct ServiceInner {
    world: World,
    rank: usize,
    /// Ranks in the world.
    ranks: Arc<[usize]>,
    queue: Sender<StartTask>,
    bell: Arc<dyn Bell>,
    handlers: Arc<Handlers>,
    closing: Arc<AtomicBool>,
    ending: Arc<DeliveryEnd>,
    /// `None` once a thread waits for the end.
    closed: Mutex<Option<Pending<()>>>,
    thread: Mutex<Option<runtime::Thread>>,
}

impl Service {
    /// Starts the service on all ranks of the communicator. A collective call, in the same order on all of them.
    ///
    /// # Errors
    /// As [`Communicator::channel`] and [`Channel::open`](crate::Channel::open); [`Error::System`] without a thread.
    pub fn start<'a>(comm: &'a Communicator) -> Primitive<'a, Self> {
        Box::pin(async move {
            let (queue, commands) = channel();
            let handlers: Arc<Handlers> = Arc::default();
            let closing: Arc<AtomicBool> = Arc::default();
            let ending = Arc::new(DeliveryEnd::new(closed));
            let (promise, closed) = Pending::new(&ending);
            let work = {
                let handlers = Arc::clone(&handlers);
                let closing = Arc::clone(&closing);
                let ending = Arc::clone(&ending);
                async move |comm: Communicator| {
                    let mut worker = Worker::new(Dispatcher::new(comm, handlers), commands, closing);
                    let outcome = worker.run().await;
                    if let Err(error) = &outcome {
                        // Stored before the tasks that wait for answers are dropped, and read the reason.
                        ending.fail(error.clone());
                    }
                    drop(worker);
                    promise.complete(outcome);
                }
            };
            let (thread, bell) = task::start(comm, "hexagram-service", work).await?;
            let world = comm.world().clone();
            let closed = Mutex::new(Some(closed));
            let thread = Mutex::new(Some(thread));
            Ok(Service(Arc::new(ServiceInner {
                world,
                rank: comm.rank(),
                ranks: Arc::clone(comm.group().members()),
                queue,
                bell,
                handlers,
                closing,
                ending,
                closed,
                thread,
            })))
        })
    }

    /// Waits until all ranks have closed their service, and serves them until then. Afterwards, the primitives of
    /// this service cannot be used.
    ///
    /// # Errors
    /// The error that ended the service, here or on another rank; [`Error::Deadline`] if the other ranks neither
    /// close theirs nor send requests until the operation deadline.
    pub fn close<'a>(&'a self) -> Primitive<'a> {
        Box::pin(async move {
            self.0.leave();
            let closed = self.0.closed.lock().unwrap_or_else(PoisonError::into_inner).take();
            match closed {
                Some(closed) => closed.await,
                None => self.0.ending.failure().map_or(Ok(()), Err),
            }
        })
    }

    /// Returns this rank.
    pub(crate) fn rank(&self) -> usize {
        self.0.rank
    }

    /// Returns the number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.0.ranks.len()
    }

    /// Fails unless a communicator is of the service's ranks, in their order.
    pub(crate) fn check_ranks(&self, comm: &Communicator) -> Result<()> {
        if comm.world_ranks() == &*self.0.ranks {
            return Ok(());
        }
        let what = format!(
            "the communicator is of the ranks {:?}, the service of {:?}",
            comm.world_ranks(),
            self.0.ranks
        );
        Err(Error::usage(what, "use the communicator on which the service was started"))
    }

    /// Registers `handler` under a new number, and returns the number: the k-th of one rank is the k-th of all. No
    /// rank may send requests to it before all ranks have registered theirs.
    pub(crate) fn register(&self, handler: Arc<dyn Handler>) -> Result<u32> {
        let mut handlers = self.0.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        handlers.push(handler);
        u32::try_from(handlers.len() - 1)
            .map_err(|_| Error::usage("a service has too many handlers", "create fewer windows"))
    }

    /// Retries the postponed requests, after an event on this rank.
    pub(crate) fn wake(&self) {
        self.0.bell.ring();
    }

    /// Runs a future on the service thread.
    pub(crate) fn submit<T: Send + 'static, F: Future<Output = Result<T>> + 'static>(
        &self,
        work: impl FnOnce(Rc<Dispatcher>) -> F + Send + 'static,
    ) -> Pending<T> {
        let (promise, pending) = Pending::new(&self.0.ending);
        let command: StartTask = Box::new(move |dispatcher: &Rc<Dispatcher>| {
            let dispatcher = Rc::clone(dispatcher);
            let work = work(Rc::clone(&dispatcher));
            Box::pin(async move { promise.complete(dispatcher.guarded(work).await) }) as ServiceTask
        });
        // A thread that has ended has stored its error, or was closed: the dropped promise returns it.
        let _ = self.0.queue.send(command);
        self.0.bell.ring();
        pending
    }

    /// Returns the result of a failed call.
    pub(crate) fn refused<T>(&self, error: Error) -> Pending<T> {
        Pending::failed(&self.0.ending, error)
    }
}

fn closed() -> Error {
    Error::usage("the service is closed", "close it after its last use")
}

impl ServiceInner {
    /// Makes the thread end as soon as all ranks have closed their service.
    fn leave(&self) {
        self.closing.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl Drop for ServiceInner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.world.health().fail_self("panicked");
        }
        self.leave();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Panics of its tasks are caught inside.
            let _ = thread.join();
        }
    }
}
