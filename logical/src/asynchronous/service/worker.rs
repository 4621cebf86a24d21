//! The worker of a service: in a loop, it takes requests of the program, receives those of other ranks, and polls all
//! tasks.

use super::dispatcher::{Dispatcher, mailbox, request_label};
use super::wire::violation;
use crate::runtime::{self, Instant};
use crate::{Buffer, Error, ReceiveMode, Result};
use hexagram_physical::error::{ErrorContext, Straggler};
use hexagram_physical::stopwatch::Stopwatch;
use hexagram_physical::transport::{Received, Source, Ticket};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::task::{Context, Poll};

/// A running task.
pub(super) type ServiceTask = Pin<Box<dyn Future<Output = ()>>>;
/// Starts a task for the program of this rank.
pub(super) type StartTask = Box<dyn FnOnce(&Rc<Dispatcher>) -> ServiceTask + Send>;

/// Progress of the end.
#[derive(PartialEq, Eq)]
enum WorkerStage {
    Open,
    /// The other ranks are being notified.
    Leaving,
}

pub(super) struct Worker {
    dispatcher: Rc<Dispatcher>,
    commands: Receiver<StartTask>,
    closing: Arc<AtomicBool>,
    stage: WorkerStage,
    /// Tasks for the program of this rank, and for other ranks, in the order in which they began.
    own: Vec<ServiceTask>,
    theirs: Vec<ServiceTask>,
    /// Start of the current work.
    working: Option<Instant>,
}

impl Worker {
    pub(super) fn new(
        dispatcher: Dispatcher,
        commands: Receiver<StartTask>,
        closing: Arc<AtomicBool>,
    ) -> Self {
        let own = Vec::new();
        let theirs = Vec::new();
        Worker {
            dispatcher: Rc::new(dispatcher),
            commands,
            closing,
            stage: WorkerStage::Open,
            own,
            theirs,
            working: None,
        }
    }

    /// Works until all ranks have closed their service, or one has failed and the program of this rank has been
    /// notified.
    pub(crate) async fn run(&mut self) -> Result<()> {
        let mailbox = mailbox()?;
        let mut listening = listen(&self.dispatcher, &mailbox)?;
        poll_fn(|context| self.step(&mailbox, &mut listening, context)).await
    }

    /// Polls all tasks once, and wakes itself after any progress.
    fn step(
        &mut self,
        mailbox: &Buffer,
        listening: &mut Ticket,
        context: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        let dispatcher = Rc::clone(&self.dispatcher);
        let endpoint = dispatcher.comm.endpoint();
        // In this order, so that commands from before the close are found.
        let closing = self.closing.load(Ordering::Acquire);
        let mut busy = self.obey();
        while let Poll::Ready(outcome) = endpoint.poll(*listening, context) {
            busy = true;
            let heard = outcome.and_then(|got| self.receive(got, mailbox));
            heard.unwrap_or_else(|error| drop(dispatcher.fail(error)));
            *listening = match listen(&dispatcher, mailbox) {
                Ok(ticket) => ticket,
                Err(error) => return Poll::Ready(Err(error)),
            };
        }
        self.note();
        busy |= advance(&mut self.own, context) | advance(&mut self.theirs, context);
        self.note();
        if closing && let Some(outcome) = self.end() {
            endpoint.cancel(*listening);
            return Poll::Ready(outcome);
        }
        if busy {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Starts the tasks of the program of this rank; returns true if there were any.
    fn obey(&mut self) -> bool {
        let before = self.own.len();
        self.own.extend(self.commands.try_iter().map(|command| command(&self.dispatcher)));
        self.own.len() > before
    }

    /// Records times of work, if recording is on.
    fn note(&mut self) {
        let comm = &self.dispatcher.comm;
        if self.own.len() + self.theirs.len() > self.dispatcher.postponed.get() {
            self.working.get_or_insert_with(runtime::now);
        } else if let Some(start) = self.working.take() {
            comm.activity().ends(start, comm.world().traffic().bytes_sent());
        }
    }

    fn receive(&mut self, got: Received, mailbox: &Buffer) -> Result<()> {
        let message = mailbox.host::<u8>()?;
        let got = got.checked(self.dispatcher.comm.endpoint(), message.len())?;
        let comm = &self.dispatcher.comm;
        let from = comm.group().rank_of(got.peer).ok_or_else(|| {
            violation(&comm.world().health().peers()[got.peer], "a request to a service that it is not in")
        })?;
        if let Some(task) = self.dispatcher.receive(from, &message[..got.bytes])? {
            self.theirs.push(Box::pin(task));
        }
        Ok(())
    }

    /// Continues with the close; returns the outcome when it is complete.
    fn end(&mut self) -> Option<Result<()>> {
        if !self.own.is_empty() {
            return None;
        }
        if let Some(error) = self.dispatcher.failure() {
            // Requests of other ranks end as well.
            return self.theirs.is_empty().then_some(Err(error));
        }
        let rank = self.dispatcher.rank();
        if self.stage == WorkerStage::Open {
            self.stage = WorkerStage::Leaving;
            self.dispatcher.last_heard.set(Stopwatch::start());
            let others = (0..self.dispatcher.comm.size()).filter(|peer| *peer != rank);
            let leave = |peer| -> ServiceTask {
                let dispatcher = Rc::clone(&self.dispatcher);
                Box::pin(async move {
                    dispatcher.send_leave(peer).await.unwrap_or_else(|error| drop(dispatcher.fail(error)));
                })
            };
            self.own.extend(others.map(leave));
            return None;
        }
        let left = self.dispatcher.left.borrow();
        let missing: Vec<usize> = (0..left.len()).filter(|peer| *peer != rank && !left[*peer]).collect();
        if missing.is_empty() {
            return self.theirs.is_empty().then_some(Ok(()));
        }
        drop(left);
        let error = self.obstacle(&missing)?;
        Some(Err(self.dispatcher.fail(error)))
    }

    /// Returns the reason why some ranks will never close their service.
    fn obstacle(&self, missing: &[usize]) -> Option<Error> {
        let after = self.dispatcher.comm.world().deadline();
        let straggler =
            |peer: &usize| Straggler { peer: self.dispatcher.peer(*peer), context: ErrorContext::Nothing };
        let mut heard = self.dispatcher.last_heard.get();
        let silence = heard.elapsed();
        self.dispatcher.last_heard.set(heard);
        (silence > after).then(|| Error::Deadline {
            waiting_for: missing.first().map(|peer| self.dispatcher.peer(*peer)),
            stragglers: missing.iter().map(straggler).collect(),
            after,
            context: ErrorContext::Nothing,
        })
    }
}

/// Posts the receive of the next request, from any rank.
fn listen(dispatcher: &Dispatcher, mailbox: &Buffer) -> Result<Ticket> {
    let view = mailbox.write(0..mailbox.len())?;
    Ok(dispatcher.comm.endpoint().post_recv(Source::Any, request_label()?, view, ReceiveMode::AtMost))
}

/// Polls all tasks once, in order, and drops the finished ones; returns true if any has finished.
fn advance(tasks: &mut Vec<ServiceTask>, context: &mut Context<'_>) -> bool {
    let before = tasks.len();
    tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
    tasks.len() < before
}
