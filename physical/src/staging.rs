//! The endpoint around every transport's: it sends and receives what is not in host memory, by way of the host. Open
//! this to see how a device's memory travels.
//!
//! Views of host memory pass through. A view of a device is *staged*: a message is copied down first, and posted when
//! the event of that copy has happened; what arrives lands in host memory, and is copied up, or up and reduced, by the
//! queue of the view. So are the collectives that a backend carries out by itself. A transport thus sees host memory
//! only.
//!
//! A message of work that failed, such as that of a codec which refused, is not sent: the next operation of the
//! endpoint that is polled fails instead of waiting, whichever it is. While an operation is being copied, later ones of
//! its lane wait for their turn, wherever their memory is.
//!
//! A staged receive is over when its last work is enqueued: whatever is asked of the memory afterwards waits for that.

mod staged;

use crate::device::Queue;
use crate::dtype::DType;
use crate::error::Result;
use crate::health::Health;
use crate::memory::{Buffer, ReadView, WriteView};
use crate::native::{AtOnce, Collectives};
use crate::transport::{Bell, Got, Label, Land, Source, Ticket, Transport, TransportKind};
use staged::{Staged, Table, Turn};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Set in the tickets of staged operations, to tell them from those of the transport; shared memory has the bit above.
const STAGED: u32 = 1 << 30;

fn mark(ticket: Ticket) -> Ticket {
    Ticket { index: ticket.index | STAGED, ..ticket }
}

/// Returns a staged operation's ticket without its mark; `None` for those of the transport.
fn unmark(ticket: Ticket) -> Option<Ticket> {
    (ticket.index & STAGED != 0).then_some(Ticket { index: ticket.index & !STAGED, ..ticket })
}

/// An endpoint that stages what is not in host memory.
pub(crate) struct Staging {
    transport: Rc<dyn Transport>,
    /// The transport's, which every poll asks for.
    health: Arc<Health>,
    table: RefCell<Table>,
    /// Staged operations that are not posted yet.
    copying: Cell<usize>,
    /// Set once a staged operation could not be posted, until an operation of this endpoint has failed for it.
    failing: Cell<bool>,
}

impl Staging {
    /// Puts such an endpoint around a transport's.
    pub(crate) fn around(transport: Rc<dyn Transport>) -> Rc<dyn Transport> {
        Rc::new(Staging {
            health: Arc::clone(transport.health()),
            transport,
            table: RefCell::default(),
            copying: Cell::new(0),
            failing: Cell::new(false),
        })
    }

    /// Takes an operation into the table, or the reason why it cannot begin.
    #[cold]
    fn stage(&self, staged: Result<Staged>) -> Ticket {
        let mut table = self.table.borrow_mut();
        let ticket = table.open(staged);
        table.advance(&*self.transport);
        self.note(&table);
        mark(ticket)
    }

    /// Posts what has been copied down. Returns true if anything was.
    #[cold]
    fn advance(&self) -> bool {
        let mut table = self.table.borrow_mut();
        let moved = table.advance(&*self.transport);
        self.note(&table);
        moved
    }

    /// Returns true if an operation has to wait for one of its lane that is still being copied.
    fn has_to_wait(&self, label: &Label, to: Option<usize>) -> bool {
        self.copying.get() > 0 && self.table.borrow().comes_before(&Turn::of(label, to))
    }

    fn note(&self, table: &Table) {
        self.copying.set(table.waiting());
        self.failing.set(table.has_failed());
    }

    /// Ends a pending operation if an earlier one could not be posted. Its own caller may come to that one much later:
    /// it waits for what other ranks will not send before they have got the message.
    #[cold]
    fn fail(&self, ticket: Ticket) -> Poll<Result<Got>> {
        self.failing.set(false);
        let failure = self.table.borrow_mut().take_failure();
        let Some(error) = failure else { return Poll::Pending };
        self.cancel(ticket);
        Poll::Ready(Err(error))
    }

    #[cold]
    fn poll_staged(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Got>> {
        if self.copying.get() > 0 {
            self.advance();
        }
        self.table.borrow_mut().poll(ticket, &*self.transport, context)
    }
}

impl Transport for Staging {
    fn kind(&self) -> TransportKind {
        self.transport.kind()
    }

    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn size(&self) -> usize {
        self.transport.size()
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.transport.bell()
    }

    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        if view.is_on_host() && !self.has_to_wait(&label, Some(to)) {
            return self.transport.post_send(to, label, view);
        }
        self.stage(Staged::send(to, label, view, &self.transport.bell()))
    }

    fn post_recv(&self, from: Source, label: Label, view: WriteView, land: Land) -> Ticket {
        if view.is_on_host() {
            return self.transport.post_recv(from, label, view, land);
        }
        self.stage(Staged::recv(from, label, view, land, &*self.transport))
    }

    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Got>> {
        let outcome = match unmark(ticket) {
            None => self.transport.poll(ticket, context),
            Some(ticket) => self.poll_staged(ticket, context),
        };
        if outcome.is_pending() && self.failing.get() {
            return self.fail(ticket);
        }
        outcome
    }

    fn cancel(&self, ticket: Ticket) {
        let Some(ticket) = unmark(ticket) else { return self.transport.cancel(ticket) };
        let mut table = self.table.borrow_mut();
        table.cancel(ticket, &*self.transport);
        self.note(&table);
    }

    fn progress(&self) -> bool {
        let posted = self.copying.get() > 0 && self.advance();
        self.transport.progress() || posted
    }

    fn crowded(&self) -> bool {
        self.transport.crowded()
    }

    fn park(&self, at_most: Duration) {
        self.transport.park(at_most);
    }

    fn ended(&self, peer: usize) -> Option<String> {
        self.transport.ended(peer)
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        match unmark(ticket) {
            None => self.transport.moved(ticket),
            Some(ticket) => {
                self.table.borrow().posted(ticket).map_or(0, |posted| self.transport.moved(posted))
            }
        }
    }

    fn native(&self) -> Option<&dyn Collectives> {
        self.transport.native().map(|_| self as &dyn Collectives)
    }

    fn missing(&self, ticket: Ticket) -> Vec<usize> {
        match unmark(ticket) {
            None => self.transport.missing(ticket),
            Some(ticket) => {
                let posted = self.table.borrow().posted(ticket);
                posted.map(|posted| self.transport.missing(posted)).unwrap_or_default()
            }
        }
    }

    fn register(&self, queue: &Queue, dtype: DType, len: usize, limit: Duration) -> Result<Buffer> {
        self.transport.register(queue, dtype, len, limit)
    }
}

impl Collectives for Staging {
    fn offers(&self, label: &Label, input: Option<&ReadView>, output: &WriteView) -> bool {
        self.transport.native().is_some_and(|native| native.offers(label, input, output))
    }

    fn at_once(&self, label: &Label, bytes: &mut [u8]) -> AtOnce {
        match self.transport.native() {
            Some(native) if !self.has_to_wait(label, None) => native.at_once(label, bytes),
            _ => AtOnce::Not,
        }
    }

    fn post(&self, label: Label, input: Option<ReadView>, output: WriteView) -> Ticket {
        let on_host = output.is_on_host() && input.as_ref().is_none_or(ReadView::is_on_host);
        match self.transport.native() {
            Some(native) if on_host && !self.has_to_wait(&label, None) => native.post(label, input, output),
            _ => self.stage(Staged::native(label, input, output, &self.transport.bell())),
        }
    }
}

#[cfg(test)]
mod tests;
