//! The future of the physical layer: a posted operation, with its deadline and the interpretation of its failure.
//!
//! # Cancel safety
//! Dropping an unfinished operation cancels it, releases its memory as soon as no copy is running, and poisons its
//! communicator, because the other side has a partial message. `drop` never waits.

use crate::control::health::{GRACE, Health, PublishedWait};
use crate::error::{Error, ErrorContext, Result, Straggler};
use crate::transport::{Label, Received, Source, Ticket, Transport};
use crate::waiting::drive;
use crate::waiting::stopwatch::Stopwatch;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Number of polls without progress from one check of the clock and the peers to the next: some microseconds of spinning.
const BRIEF: u32 = 64;
/// Number of reads of arrived data before a message counts as missing: more than a full socket holds.
const LAST_LOOKS: u32 = 64;

/// First failure of a communicator, after which none of its operations can be trusted.
#[derive(Debug, Default)]
pub struct Poison(RefCell<Option<String>>);

impl Poison {
    /// Fails before the operation of `label` begins, if an operation or a rank has failed. Otherwise the operation might find
    /// all its messages, although the ranks that sent them have given it up since.
    ///
    /// # Errors
    /// [`Error::Poisoned`], with the first failure here; [`Error::PeerFailed`] if it was that of another rank.
    #[inline]
    pub fn check(&self, health: &Health, label: &Label) -> Result<()> {
        if let Some(because) = &*self.0.borrow() {
            return Err(Error::Poisoned { because: because.clone() });
        }
        let Some(verdict) = health.verdict() else { return Ok(()) };
        let error = verdict.error(ErrorContext::Operation(label.fingerprint, label.tag));
        self.spread(health, &error);
        Err(error)
    }

    /// Records a failure, and reports it to the other ranks unless there already is a verdict.
    pub fn spread(&self, health: &Health, error: &Error) {
        let mut poison = self.0.borrow_mut();
        if poison.is_none() {
            *poison = Some(error.to_string());
            match error {
                Error::PeerFailed { culprit, cause, .. }
                | Error::Membership { culprit: Some(culprit), cause, .. } => {
                    health.report_failure(culprit.rank, cause);
                }
                // The launcher has notified the other ranks.
                Error::Membership { .. } => {}
                Error::Deadline { stragglers, after, context, .. } => match stragglers.first() {
                    Some(Straggler {
                        peer,
                        context: what @ (ErrorContext::Nothing | ErrorContext::Device),
                    }) => {
                        let why = match what {
                            ErrorContext::Device => "it is alive, but its device had not finished its work",
                            _ => "it is alive, but was in no operation",
                        };
                        health.report_failure(
                            peer.rank,
                            &format!("kept others waiting for {after:?}{context} ({why})"),
                        );
                    }
                    _ => health.fail_self(&format!("gave up: {error}")),
                },
                other => health.fail_self(&format!("gave up: {other}")),
            }
        }
    }
}

/// Context of an operation in addition to its ticket.
#[derive(Clone, Copy)]
pub struct OperationContext<'a> {
    /// The endpoint it was posted on.
    pub transport: &'a dyn Transport,
    /// Record of its failure.
    pub poison: &'a Poison,
    /// Longest time without progress.
    pub deadline: Duration,
}

/// A running send or receive; resolves when its view may be used again.
#[must_use = "an operation dropped before it is finished poisons its communicator"]
pub struct Operation<'a> {
    terms: OperationContext<'a>,
    /// `None` once the outcome was taken.
    ticket: Option<Ticket>,
    /// In vain.
    polls: u32,
    /// Number of parks of this thread at the last look.
    parks: u64,
    peer: Source,
    /// Ranks, any of which may send the awaited message.
    senders: Vec<usize>,
    label: Label,
    /// Bytes that had moved at the last look, and for how long no more have.
    moved: u64,
    waiting: Option<Stopwatch>,
    suspected: Option<Stopwatch>,
    /// Publishes the ranks for which this waits, after a while.
    notice: Option<PublishedWait>,
}

impl<'a> Operation<'a> {
    /// Wraps a ticket that was just posted.
    pub fn new(terms: OperationContext<'a>, ticket: Ticket, peer: Source, label: Label) -> Self {
        Operation {
            terms,
            ticket: Some(ticket),
            polls: 0,
            parks: drive::parks(),
            peer,
            senders: Vec::new(),
            label,
            moved: 0,
            waiting: None,
            suspected: None,
            notice: None,
        }
    }

    /// Wraps the ticket of a receive that was just posted, and takes the first message of any of `senders`. Fails
    /// once none of them can send any more.
    pub fn from_any(terms: OperationContext<'a>, ticket: Ticket, senders: Vec<usize>, label: Label) -> Self {
        let mut operation = Operation::new(terms, ticket, Source::Any, label);
        operation.senders = senders;
        operation
    }

    fn context(&self) -> ErrorContext {
        ErrorContext::Operation(self.label.fingerprint, self.label.tag)
    }

    /// Returns true to skip the checks of the clock and of the peers for now: most operations end within the first
    /// polls, and cheap checks see the end of the others sooner. A verdict is checked immediately. A thread that
    /// parks between polls, or that a foreign executor polls, does not poll often enough to skip the checks.
    fn is_brief(&mut self, foreign: bool) -> bool {
        self.polls = self.polls.saturating_add(1);
        let often = drive::parks() == std::mem::replace(&mut self.parks, drive::parks());
        let skip = self.polls < BRIEF || !(foreign || self.polls.is_multiple_of(BRIEF));
        often && skip && self.terms.transport.health().verdict().is_none()
    }

    /// Returns the reason why a pending operation cannot continue, if any.
    fn obstacle(&mut self) -> Option<Error> {
        let transport = self.terms.transport;
        let health = transport.health();
        let (one, many);
        let missing: &[usize] = match self.peer {
            _ if transport.devices().is_some_and(|devices| devices.is_at_work(&self.label)) => {
                one = [transport.rank()];
                &one
            }
            Source::Rank(peer) => {
                one = [peer];
                &one
            }
            Source::Any => {
                let collective = transport.native().zip(self.ticket);
                many = collective.map(|(native, ticket)| native.missing(ticket)).unwrap_or_default();
                &many
            }
        };
        if let Some(rank) = missing.iter().find(|rank| **rank >= health.peers().len()) {
            let what = format!("{} waits for rank {rank}, which does not exist", transport.kind());
            return Some(Error::usage(what, "correct the transport"));
        }
        let gone = self.gone(missing).or_else(|| self.all_gone());
        let waited = self.waited();
        if health.is_in_doubt() {
            self.suspected = None;
        }
        let mut suspicion = || self.suspected.get_or_insert_with(Stopwatch::start).elapsed();
        let suspected = gone.as_ref().map_or(Duration::ZERO, |_| suspicion());
        let culprit = |rank: usize, cause: &str| Some(health.failure(rank, cause).error(self.context()));
        if let Some(verdict) = health.verdict() {
            return Some(verdict.error(self.context()));
        }
        match gone {
            Some((peer, true, _)) => culprit(peer, "finished without taking part"),
            Some((peer, _, cause)) if suspected > GRACE => culprit(peer, &cause),
            _ if waited > self.terms.deadline => Some(self.late(missing)),
            _ => {
                self.make_known(missing, waited);
                None
            }
        }
    }

    /// Returns the first of these ranks whose end of the channel is closed, if it has left, and why the end is closed.
    fn gone(&self, missing: &[usize]) -> Option<(usize, bool, String)> {
        let transport = self.terms.transport;
        missing.iter().filter(|peer| **peer != transport.rank()).find_map(|&peer| {
            // In this order: a rank that leaves because of a failure has reported the failure before.
            let left = transport.health().has_left(peer);
            Some((peer, left, transport.ended(peer)?))
        })
    }

    /// Returns the last of the senders, as [`Operation::gone`] does, if all of them are gone.
    fn all_gone(&self) -> Option<(usize, bool, String)> {
        let mut last = None;
        for sender in &self.senders {
            // Its own messages would be there.
            if *sender != self.terms.transport.rank() {
                last = Some(self.gone(&[*sender])?);
            }
        }
        last
    }

    /// Publishes the ranks for which this has waited a while, and logs those for which it has waited long.
    fn make_known(&mut self, missing: &[usize], waited: Duration) {
        let health = self.terms.transport.health();
        let heartbeat = health.heartbeat();
        if waited < heartbeat.beat || self.is_queued() {
            self.notice = None;
        } else if self.notice.as_ref().is_none_or(|notice| notice.since.elapsed() > heartbeat.beat) {
            self.notice = Some(health.notice(self.label, missing));
            if waited > heartbeat.late {
                health.warn(&self.label, waited, missing);
            }
        }
    }

    /// Returns true if this waits for other operations of its endpoint, whose notices name the ranks that they wait for.
    fn is_queued(&self) -> bool {
        self.terms
            .transport
            .native()
            .zip(self.ticket)
            .is_some_and(|(native, ticket)| native.is_queued(ticket))
    }

    /// Returns the time in which nothing has moved.
    fn waited(&mut self) -> Duration {
        let moved = self.ticket.map_or(0, |ticket| self.terms.transport.moved(ticket));
        if moved > std::mem::replace(&mut self.moved, moved) {
            self.waiting = None;
        }
        self.waiting.get_or_insert_with(Stopwatch::start).elapsed()
    }

    /// Decides whether this can continue, after reading all arrived data: this process may have been stopped since
    /// the last check.
    fn judge(&mut self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Received>> {
        let Some(error) = self.obstacle() else { return Poll::Pending };
        let transport = self.terms.transport;
        if transport.health().verdict().is_some() {
            return self.fail(error);
        }
        for _ in 0..LAST_LOOKS {
            let has_moved = transport.progress();
            if let Poll::Ready(outcome) = transport.poll(ticket, context) {
                return self.settle(outcome);
            }
            if !has_moved {
                break;
            }
        }
        self.obstacle().map_or(Poll::Pending, |error| self.fail(error))
    }

    fn settle(&mut self, outcome: Result<Received>) -> Poll<Result<Received>> {
        self.ticket = None;
        match outcome.and_then(|got| got.checked(self.terms.transport, usize::MAX)) {
            Ok(got) => {
                self.notice = None;
                Poll::Ready(Ok(got))
            }
            Err(error) => self.fail(error),
        }
    }

    fn late(&self, missing: &[usize]) -> Error {
        let health = self.terms.transport.health();
        let after = self.terms.deadline;
        let context = self.context();
        let waiting_for = missing.first().map(|rank| health.peers()[*rank].clone());
        // Earlier, the waits of other ranks may be unknown, and a rank that itself waits would be reported.
        let known = after > health.heartbeat().hearsay();
        let stragglers = if known { health.stragglers(&self.label) } else { Vec::new() };
        Error::Deadline { waiting_for, stragglers, after, context }
    }

    fn fail(&mut self, error: Error) -> Poll<Result<Received>> {
        if let Some(ticket) = self.ticket.take() {
            self.terms.transport.cancel(ticket);
        }
        self.terms.poison.spread(self.terms.transport.health(), &error);
        // Not before: a rank whose deadline passes at this moment would report this rank as late.
        self.notice = None;
        Poll::Ready(Err(error))
    }
}

impl Future for Operation<'_> {
    type Output = Result<Received>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Received>> {
        let Some(ticket) = self.ticket else {
            return Poll::Ready(Err(Error::usage("a finished operation was polled again", "await it once")));
        };
        let transport = self.terms.transport;
        let mut outcome = transport.poll(ticket, context);
        // Our own driver makes progress between polls; under a foreign executor, polling is the only chance.
        let foreign = !drive::drives(context);
        if outcome.is_pending() && foreign {
            transport.progress();
            outcome = transport.poll(ticket, context);
            context.waker().wake_by_ref();
        }
        match outcome {
            Poll::Ready(outcome) => self.settle(outcome),
            Poll::Pending if self.is_brief(foreign) => Poll::Pending,
            Poll::Pending => self.judge(ticket, context),
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.terms.transport.cancel(ticket);
            let what = self.label.fingerprint;
            let error = match std::thread::panicking() {
                true => Error::usage(format!("a panic ended {what}"), "see the message of that rank"),
                false => {
                    let what = format!("{what} was dropped before it was finished");
                    Error::usage(what, "await every operation to completion")
                }
            };
            self.terms.poison.spread(self.terms.transport.health(), &error);
        }
    }
}
