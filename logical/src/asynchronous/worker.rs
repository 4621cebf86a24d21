//! The worker of a service: over and over it takes requests of this rank's program, receives those of other ranks, and
//! polls everything under way.

use super::dispatcher::{Dispatcher, mailbox, request_label};
use crate::runtime::{self, Instant};
use crate::{Buffer, Error, Land, Result};
use hexagram_physical::error::{During, Straggler};
use hexagram_physical::stopwatch::Stopwatch;
use hexagram_physical::transport::{Got, Source, Ticket};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::task::{Context, Poll};

/// Something under way.
pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;
/// Starts something that this rank's program wants.
pub(super) type Command = Box<dyn FnOnce(&Rc<Dispatcher>) -> Task + Send>;

/// Progress of the end.
#[derive(PartialEq, Eq)]
enum Stage {
    Open,
    /// The others are being told.
    Leaving,
}

pub(super) struct Worker {
    dispatcher: Rc<Dispatcher>,
    commands: Receiver<Command>,
    closing: Arc<AtomicBool>,
    stage: Stage,
    /// Tasks for this rank's program, and for other ranks, in the order in which they began.
    own: Vec<Task>,
    theirs: Vec<Task>,
    /// Since when there has been something to do.
    working: Option<Instant>,
}

impl Worker {
    pub(super) fn new(dispatcher: Dispatcher, commands: Receiver<Command>, closing: Arc<AtomicBool>) -> Self {
        let own = Vec::new();
        let theirs = Vec::new();
        Worker {
            dispatcher: Rc::new(dispatcher),
            commands,
            closing,
            stage: Stage::Open,
            own,
            theirs,
            working: None,
        }
    }

    /// Works until all ranks have closed their service, or one has failed and this one's program knows.
    pub(super) async fn run(&mut self) -> Result<()> {
        let mailbox = mailbox()?;
        let mut listening = listen(&self.dispatcher, &mailbox)?;
        poll_fn(|context| self.step(&mailbox, &mut listening, context)).await
    }

    /// Polls everything once, and wakes itself if anything has happened.
    fn step(
        &mut self,
        mailbox: &Buffer,
        listening: &mut Ticket,
        context: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        let dispatcher = Rc::clone(&self.dispatcher);
        let endpoint = dispatcher.comm.endpoint();
        // In this order: what was handed over before the end was asked for is found.
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

    /// Starts what this rank's program wants; returns true if there was anything.
    fn obey(&mut self) -> bool {
        let before = self.own.len();
        self.own.extend(self.commands.try_iter().map(|command| command(&self.dispatcher)));
        self.own.len() > before
    }

    /// Keeps when there was something to do, for whoever asks.
    fn note(&mut self) {
        let comm = &self.dispatcher.comm;
        if self.own.len() + self.theirs.len() > self.dispatcher.postponed.get() {
            self.working.get_or_insert_with(runtime::now);
        } else if let Some(start) = self.working.take() {
            comm.activity().ends(start, comm.world().traffic().bytes_sent());
        }
    }

    fn receive(&mut self, got: Got, mailbox: &Buffer) -> Result<()> {
        let message = mailbox.host::<u8>()?;
        let got = got.checked(self.dispatcher.comm.endpoint(), message.len())?;
        // Only the service's ranks have connections here.
        let ranks = self.dispatcher.comm.world_ranks();
        let from = ranks.iter().position(|rank| *rank == got.peer).unwrap_or_default();
        if let Some(task) = self.dispatcher.receive(from, &message[..got.bytes])? {
            self.theirs.push(Box::pin(task));
        }
        Ok(())
    }

    /// Continues with the end; returns the outcome when it is reached.
    fn end(&mut self) -> Option<Result<()>> {
        if !self.own.is_empty() {
            return None;
        }
        if let Some(error) = self.dispatcher.failure() {
            // Whatever others want ends as well.
            return self.theirs.is_empty().then_some(Err(error));
        }
        let rank = self.dispatcher.rank();
        if self.stage == Stage::Open {
            self.stage = Stage::Leaving;
            self.dispatcher.last_heard.set(Stopwatch::start());
            let others = (0..self.dispatcher.comm.size()).filter(|peer| *peer != rank);
            let leave = |peer| -> Task {
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

    /// Returns the reason why some will never close their service.
    fn obstacle(&self, missing: &[usize]) -> Option<Error> {
        let after = self.dispatcher.comm.world().deadline();
        let straggler =
            |peer: &usize| Straggler { peer: self.dispatcher.peer(*peer), during: During::Nothing };
        let mut heard = self.dispatcher.last_heard.get();
        let silence = heard.elapsed();
        self.dispatcher.last_heard.set(heard);
        (silence > after).then(|| Error::Deadline {
            waiting_for: missing.first().map(|peer| self.dispatcher.peer(*peer)),
            stragglers: missing.iter().map(straggler).collect(),
            after,
            during: During::Nothing,
        })
    }
}

/// Posts the receive of the next request, from anyone.
fn listen(dispatcher: &Dispatcher, mailbox: &Buffer) -> Result<Ticket> {
    let view = mailbox.write(0..mailbox.len())?;
    Ok(dispatcher.comm.endpoint().post_recv(Source::Any, request_label()?, view, Land::AtMost))
}

/// Polls everything once, in order, and drops what has ended; returns true if anything has.
fn advance(tasks: &mut Vec<Task>, context: &mut Context<'_>) -> bool {
    let before = tasks.len();
    tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
    tasks.len() < before
}
