//! The training thread's handle of the communication thread.

use super::{FinishedBucket, HookRunner, PLUGIN, Requests, RunnerCall, RunnerRequest};
use crossbeam_channel::{Receiver, RecvError, TryRecvError, bounded, unbounded};
use hexagram_logical::runtime::{self, Thread};
use hexagram_logical::{Communicator, Error, Result, drive};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

pub(crate) struct Scheduler {
    requests: Requests,
    done: Receiver<FinishedBucket>,
    thread: Option<Thread>,
}

impl Scheduler {
    /// Starts the thread, on a channel of the ranks of the communicator. A collective call.
    pub(crate) fn start(comm: &Communicator, streams: usize, hierarchical: bool) -> Result<Self> {
        let (to_thread, incoming) = unbounded();
        let (outgoing, done) = unbounded();
        let (started, starting) = bounded(1);
        let channel = comm.block_on(comm.channel())?;
        let open = async move || {
            let comm = channel.open()?;
            let hierarchy = match hierarchical {
                true => Some(drive::run(comm.endpoint(), comm.hierarchy()).await?),
                false => None,
            };
            Ok((comm, hierarchy))
        };
        let run = async move || match open().await {
            Err(error) => drop(started.send(Err(error))),
            Ok((comm, hierarchy)) => {
                // The caller waits for this answer, or has ended.
                let _ = started.send(Ok(comm.bell()));
                let reported = outgoing.clone();
                let runner = HookRunner::new(comm, hierarchy, streams, outgoing);
                if let Err(panic) = caught(runner.run(&incoming)).await {
                    let _ = reported.send(Err(Error::panicked(PLUGIN, &*panic)));
                }
            }
        };
        let thread = runtime::spawn_task("hexagram-comm", run)?;
        let bell = receive(&starting).map_err(|_| died())??;
        let requests = Requests::new(to_thread, bell);
        Ok(Scheduler { requests, done, thread: Some(thread) })
    }

    pub(crate) fn requests(&self) -> Requests {
        self.requests.clone()
    }

    /// Waits for the next bucket that is done. Bounded by the deadlines of its operations.
    pub(crate) fn wait(&self) -> FinishedBucket {
        receive(&self.done).unwrap_or_else(|_| Err(died()))
    }

    /// Makes the communication thread treat gradients that are not finite as an overflow, if `asked`.
    pub(crate) fn watch_overflows(&self, asked: bool) -> Result<()> {
        if !asked {
            return Ok(());
        }
        self.call(async |runner| {
            runner.watch_overflows();
            Ok(())
        })
    }

    /// Runs a function on the communication thread between two steps, and waits for it.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(&mut HookRunner) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let (answered, answer) = bounded(1);
        let kept = Arc::new(Mutex::new(None));
        let outcome = Arc::clone(&kept);
        let call: RunnerCall = Box::new(move |runner| {
            Box::pin(async move {
                *lock(&outcome) = Some(work(runner).await?);
                // The caller is waiting for it.
                let _ = answered.send(());
                Ok(())
            })
        });
        self.requests.send(RunnerRequest::Call(call))?;
        // A channel of the result type would be compiled for each type.
        let answer = receive(&answer).ok().and_then(|()| lock(&kept).take());
        answer.ok_or_else(|| self.wait().err().unwrap_or_else(died))
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.requests.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for a message from the communication thread, in the way its world requires.
fn receive<T>(receiver: &Receiver<T>) -> std::result::Result<T, RecvError> {
    runtime::wait_for(
        || receiver.recv(),
        || match receiver.try_recv() {
            Ok(message) => Some(Ok(message)),
            Err(TryRecvError::Disconnected) => Some(Err(RecvError)),
            Err(TryRecvError::Empty) => None,
        },
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `future` to completion or to its panic.
async fn caught<F: Future>(future: F) -> std::thread::Result<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

fn died() -> Error {
    Error::usage("the communication thread ended", "see the error that it reported before")
}
