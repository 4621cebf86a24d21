//! The communication thread: runs the algorithm's hooks for complete buckets, while the training thread computes.
//!
//! Buckets start in plan order, whatever the order in which they become complete, since ranks may differ in that; a slow
//! bucket does not keep the next from starting. Each has a lane of its own.

use super::plan::{Plan, Tensors};
use crate::algorithm::AnyAlgorithm;
use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
use hexagram_logical::physical::drive::{self, Wait};
use hexagram_logical::physical::transport::Bell;
use hexagram_logical::{Buffer, Communicator, Error, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

type State = Box<dyn Any + Send>;
/// A bucket's number, and the bucket.
type Numbered = (usize, Buffer);
type Done = Result<Numbered>;
/// A hook, which owns all that it works with and gives it back.
type Hook = Pin<Box<dyn Future<Output = Finished>>>;

struct Finished {
    outcome: Result<()>,
    state: State,
    buffer: Buffer,
}

/// The training thread's end.
pub(super) struct Scheduler {
    port: Port,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

/// Where complete buckets are handed over.
#[derive(Clone)]
pub(super) struct Port {
    /// `None` once the scheduler is gone.
    buckets: Arc<Mutex<Option<Sender<Numbered>>>>,
    bell: Arc<dyn Bell>,
}

impl Port {
    pub(super) fn send(&self, bucket: usize, buffer: Buffer) -> Result<()> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(buckets) = &*buckets else {
            return Err(Error::usage("the engine is gone", "keep DataParallel while its hooks are in use"));
        };
        // A thread that has ended has said why; `Scheduler::wait` tells.
        let _ = buckets.send((bucket, buffer));
        self.bell.ring();
        Ok(())
    }
}

impl Scheduler {
    /// Starts the thread. With it come the buckets' buffers, in memory that the transport reaches best.
    pub(super) fn start(
        comm: &Communicator,
        channel: u16,
        algorithm: Arc<dyn AnyAlgorithm>,
        plan: &Plan,
    ) -> Result<(Self, Vec<Buffer>)> {
        let (buckets, tensors) = (plan.buckets(), plan.tensors());
        let (to_thread, incoming) = unbounded();
        let (outgoing, done) = unbounded();
        let (started, starting) = unbounded();
        let world = comm.world().clone();
        let shapes: Vec<_> = buckets.iter().map(|bucket| (bucket.dtype, bucket.len)).collect();
        let states: Vec<State> = buckets
            .iter()
            .map(|bucket| algorithm.any_state(&Buffer::zeroed(bucket.dtype, bucket.len)?))
            .collect::<Result<_>>()?;
        let open = move || {
            let comm = Communicator::open(&world, channel)?;
            let buffers: Result<Vec<_>> =
                shapes.iter().map(|(dtype, len)| comm.registered(*dtype, *len)).collect();
            Ok((comm, buffers?))
        };
        let count = buckets.len();
        let run = move || match open() {
            Err(error) => drop(started.send(Err(error))),
            Ok((comm, buffers)) => {
                // Whoever asked has either this answer or none to wait for.
                let _ = started.send(Ok((comm.bell(), buffers)));
                let lanes = (0..count).map(|lane| comm.lane(lane)).collect();
                let reported = outgoing.clone();
                let flight = Flight::new(comm, lanes, algorithm, (states, tensors), outgoing);
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| flight.run(&incoming))) {
                    let _ = reported.send(Err(panicked(&*panic)));
                }
            }
        };
        let thread = std::thread::Builder::new().name("hexagram-comm".to_owned()).spawn(run);
        let thread = thread.map_err(|cause| Error::system("start a thread", cause, "raise ulimit -u"))?;
        let (bell, buffers) = starting.recv().map_err(|_| died())??;
        let port = Port { buckets: Arc::new(Mutex::new(Some(to_thread))), bell };
        Ok((Scheduler { port, done, thread: Some(thread) }, buffers))
    }

    pub(super) fn port(&self) -> Port {
        self.port.clone()
    }

    /// The next bucket that is done. Bounded by the deadlines of its operations.
    pub(super) fn wait(&self) -> Done {
        self.done.recv().unwrap_or_else(|_| Err(died()))
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        *self.port.buckets.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.port.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a plugin's panic is to the training loop.
fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    let what = format!("the algorithm panicked: {}", text.unwrap_or("without a message"));
    Error::usage(what, "see the panic's own message for the place")
}

fn died() -> Error {
    Error::usage("the communication thread ended", "see the error that it reported before")
}

/// A hook under way.
struct Running {
    bucket: usize,
    hook: Hook,
}

/// Everything between the training thread and the transport.
struct Flight {
    comm: Communicator,
    lanes: Vec<Communicator>,
    algorithm: Arc<dyn AnyAlgorithm>,
    /// `None` while the bucket's hook has it.
    states: Vec<Option<State>>,
    tensors: Vec<Tensors>,
    /// Complete, but not yet their turn.
    waiting: BTreeMap<usize, Buffer>,
    running: Vec<Running>,
    /// Whose turn it is.
    next: usize,
    outgoing: Sender<Done>,
}

impl Flight {
    fn new(
        comm: Communicator,
        lanes: Vec<Communicator>,
        algorithm: Arc<dyn AnyAlgorithm>,
        (states, tensors): (Vec<State>, Vec<Tensors>),
        outgoing: Sender<Done>,
    ) -> Self {
        let states = states.into_iter().map(Some).collect();
        let (waiting, running) = (BTreeMap::new(), Vec::new());
        Flight { comm, lanes, algorithm, states, tensors, waiting, running, next: 0, outgoing }
    }

    /// Works until the training thread is gone or a hook fails.
    fn run(mut self, incoming: &Receiver<Numbered>) {
        let mut wait = Wait::default();
        loop {
            let arrived = if self.running.is_empty() {
                incoming.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                incoming.try_recv()
            };
            match arrived {
                Ok((bucket, buffer)) => {
                    self.waiting.insert(bucket, buffer);
                    self.start();
                }
                Err(TryRecvError::Empty) => {}
                // Dropping what runs poisons the communicator, so that the other ranks learn of it.
                Err(TryRecvError::Disconnected) => return,
            }
            if let Err(error) = self.poll() {
                self.comm.give_up(&error);
                let _ = self.outgoing.send(Err(error));
                return;
            }
            if !self.running.is_empty() {
                wait.round(self.comm.endpoint());
            }
        }
    }

    /// Starts the hooks whose turn has come.
    fn start(&mut self) {
        while let Some(mut buffer) = self.waiting.remove(&self.next) {
            let bucket = self.next;
            let Some(mut state) = self.states[bucket].take() else {
                // Its hook of the last step still runs; its end starts this one.
                self.waiting.insert(bucket, buffer);
                return;
            };
            let (algorithm, lane) = (Arc::clone(&self.algorithm), self.lanes[bucket].clone());
            let hook = Box::pin(async move {
                let outcome = algorithm.any_bucket_ready(&lane, &mut *state, &mut buffer).await;
                Finished { outcome, state, buffer }
            });
            self.running.push(Running { bucket, hook });
            self.next = (bucket + 1) % self.lanes.len();
        }
    }

    /// Polls every hook once, and hands back the buckets that are done.
    fn poll(&mut self) -> Result<()> {
        let mut context = Context::from_waker(drive::waker());
        let mut at = 0;
        while at < self.running.len() {
            let Running { bucket, hook } = &mut self.running[at];
            let bucket = *bucket;
            let Poll::Ready(Finished { outcome, state, buffer }) = hook.as_mut().poll(&mut context) else {
                at += 1;
                continue;
            };
            drop(self.running.swap_remove(at));
            outcome.map_err(|error| self.tensors[bucket].name(error))?;
            self.states[bucket] = Some(state);
            let _ = self.outgoing.send(Ok((bucket, buffer)));
            self.start();
        }
        Ok(())
    }
}
