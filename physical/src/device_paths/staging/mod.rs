//! The endpoint around that of every transport: it sends and receives device memory.
//!
//! Views of host memory pass through. Views of device memory use the [path](super::device_path) between the devices of the
//! ranks, if there is one and it carries their operation. Otherwise they are *staged*: a message is copied down first, and
//! posted when the event of that copy has happened; what arrives lands in host memory, and is copied up, or up and reduced, by
//! the queue of the view. Collectives that a backend carries out itself are staged in the same way. A transport thus sees host
//! memory only.
//!
//! A message of work that failed, such as that of a codec which refused, is not sent: the next operation of the
//! endpoint that is polled fails instead of waiting, whichever it is. While an operation is being copied, later ones of
//! its lane wait for their turn, wherever their memory is.
//!
//! A staged receive is complete when its last work is enqueued: later uses of the memory wait for that.

mod staged;

#[cfg(feature = "cuda")]
use super::device_path;
use super::device_path::{Attached, DevicePath, MessagePath};
use crate::control::health::Health;
use crate::device::Queue;
use crate::error::Result;
use crate::memory::dtype::DType;
use crate::memory::{Buffer, ReadView, WriteView};
use crate::runtime;
use crate::transport::devices::Devices;
use crate::transport::native::{AtOnce, Collectives};
use crate::transport::{
    Bell, Label, ReceiveMode, Received, Source, Ticket, Traffic, Transport, TransportKind,
};
use staged::{PostingTurn, Staged, StagedOperations};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Set in the tickets of staged operations, to distinguish them from those of the transport; shared memory uses the
/// bit above.
const STAGED: u32 = 1 << 30;
/// Set in the tickets of operations on a path.
const ON_PATH: u32 = 1 << 29;

fn mark(ticket: Ticket, with: u32) -> Ticket {
    Ticket { index: ticket.index | with, ..ticket }
}

/// Owner of an operation, and its ticket there.
enum OperationOwner<'a> {
    Transport(Ticket),
    Staged(Ticket),
    Path(&'a dyn DevicePath, Ticket),
}

/// An endpoint that handles device memory.
pub(crate) struct Staging {
    transport: Rc<dyn Transport>,
    /// Counts of the world, to which a path adds.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "no device of such a build has a path"))]
    traffic: Arc<Traffic>,
    /// The decision of the ranks about their devices, once there is one.
    attached: OnceCell<Attached>,
    /// Health of the transport, which every poll checks.
    health: Arc<Health>,
    table: RefCell<StagedOperations>,
    /// Staged operations that are not posted yet.
    copying: Cell<usize>,
    /// Set once a staged operation could not be posted, until an operation of this endpoint has failed for it.
    failing: Cell<bool>,
}

impl Staging {
    /// Wraps the endpoint of a transport in a staging endpoint.
    pub(crate) fn around(transport: Rc<dyn Transport>, traffic: Arc<Traffic>) -> Rc<dyn Transport> {
        Rc::new(Self::new(transport, traffic))
    }

    fn new(transport: Rc<dyn Transport>, traffic: Arc<Traffic>) -> Self {
        Staging {
            health: Arc::clone(transport.health()),
            transport,
            traffic,
            attached: OnceCell::new(),
            table: RefCell::default(),
            copying: Cell::new(0),
            failing: Cell::new(false),
        }
    }

    /// Wraps the endpoint of a transport whose devices already have a path.
    #[cfg(test)]
    fn with_path(transport: Rc<dyn Transport>, device: &str, path: Rc<dyn DevicePath>) -> Rc<dyn Transport> {
        let staging = Self::new(transport, Arc::default());
        let attached = Attached { device: device.to_owned(), path: Some(path) };
        assert!(staging.attached.set(attached).is_ok());
        Rc::new(staging)
    }

    /// Returns the path of this endpoint's devices, if they have one.
    fn path(&self) -> Option<&dyn DevicePath> {
        self.attached.get()?.path.as_deref()
    }

    /// Returns the path on which messages of devices travel to or from a rank, if there is one; a rank has no path to itself.
    fn path_of_messages(&self, peer: Source) -> Option<&dyn MessagePath> {
        self.path().filter(|_| peer != Source::Rank(self.rank()))?.messages()
    }

    /// Returns the owner of an operation, and its ticket there.
    fn owner(&self, ticket: Ticket) -> OperationOwner<'_> {
        let bare = Ticket { index: ticket.index & !(STAGED | ON_PATH), ..ticket };
        match self.path() {
            _ if ticket.index & STAGED != 0 => OperationOwner::Staged(bare),
            Some(path) if ticket.index & ON_PATH != 0 => OperationOwner::Path(path, bare),
            _ => OperationOwner::Transport(ticket),
        }
    }

    /// Takes an operation into the table, or the reason why it cannot begin.
    #[cold]
    fn stage(&self, staged: Result<Staged>) -> Ticket {
        let mut table = self.table.borrow_mut();
        let ticket = table.open(staged);
        table.advance(&*self.transport);
        self.note(&table);
        mark(ticket, STAGED)
    }

    /// Posts the messages that have been copied down. Returns true if there were any.
    #[cold]
    fn advance(&self) -> bool {
        let mut table = self.table.borrow_mut();
        let moved = table.advance(&*self.transport);
        self.note(&table);
        moved
    }

    /// Returns true if an operation must wait for one of its lane that is still being copied.
    fn has_to_wait(&self, label: &Label, to: Option<usize>) -> bool {
        self.copying.get() > 0 && self.table.borrow().comes_before(&PostingTurn::of(label, to))
    }

    fn note(&self, table: &StagedOperations) {
        self.copying.set(table.waiting());
        self.failing.set(table.has_failed());
    }

    /// Ends a pending operation if an earlier one could not be posted. The caller may poll the earlier
    /// one much later: first it may wait for messages that other ranks send only after they have received that one.
    #[cold]
    fn fail(&self, ticket: Ticket) -> Poll<Result<Received>> {
        self.failing.set(false);
        let failure = self.table.borrow_mut().take_failure();
        let Some(error) = failure else { return Poll::Pending };
        self.cancel(ticket);
        Poll::Ready(Err(error))
    }

    #[cold]
    fn poll_staged(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Received>> {
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
        if let Some(path) = self.path_of_messages(Source::Rank(to)).filter(|_| !view.is_on_host()) {
            return mark(path.post_send(to, label, view), ON_PATH);
        }
        self.stage(Staged::send(to, label, view))
    }

    fn post_recv(&self, from: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket {
        if view.is_on_host() {
            return self.transport.post_recv(from, label, view, land);
        }
        if let Some(path) = self.path_of_messages(from) {
            return mark(path.post_recv(from, label, view, land), ON_PATH);
        }
        self.stage(Staged::recv(from, label, view, land, &*self.transport))
    }

    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Received>> {
        let outcome = match self.owner(ticket) {
            OperationOwner::Transport(ticket) => self.transport.poll(ticket, context),
            OperationOwner::Staged(ticket) => self.poll_staged(ticket, context),
            OperationOwner::Path(path, ticket) => path.poll(ticket, context),
        };
        if outcome.is_pending() && self.failing.get() {
            return self.fail(ticket);
        }
        outcome
    }

    fn cancel(&self, ticket: Ticket) {
        match self.owner(ticket) {
            OperationOwner::Transport(ticket) => self.transport.cancel(ticket),
            OperationOwner::Path(path, ticket) => path.cancel(ticket),
            OperationOwner::Staged(ticket) => {
                let mut table = self.table.borrow_mut();
                table.cancel(ticket, &*self.transport);
                self.note(&table);
            }
        }
    }

    fn progress(&self) -> bool {
        let posted = self.copying.get() > 0 && self.advance();
        let moved = self.transport.progress() || posted;
        self.path().is_some_and(|path| path.progress()) || moved
    }

    fn crowded(&self) -> bool {
        self.transport.crowded()
    }

    fn park(&self, at_most: Duration) {
        // A device takes longer to ring than most copies take, so that this is for sleeping threads only.
        if self.copying.get() > 0 {
            self.table.borrow_mut().ring(&self.transport.bell());
        }
        self.transport.park(at_most);
    }

    fn ended(&self, peer: usize) -> Option<String> {
        self.transport.ended(peer)
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        match self.owner(ticket) {
            OperationOwner::Transport(ticket) => self.transport.moved(ticket),
            OperationOwner::Path(path, ticket) => path.moved(ticket),
            OperationOwner::Staged(ticket) => {
                self.table.borrow().posted(ticket).map_or(0, |posted| self.transport.moved(posted))
            }
        }
    }

    fn native(&self) -> Option<&dyn Collectives> {
        let has_some = self.path().is_some() || self.transport.native().is_some();
        has_some.then_some(self as &dyn Collectives)
    }

    fn devices(&self) -> Option<&dyn Devices> {
        Some(self)
    }

    fn register(&self, queue: &Queue, dtype: DType, len: usize, limit: Duration) -> Result<Buffer> {
        match self.path().filter(|_| !queue.is_host()) {
            Some(path) => path.register(queue, dtype, len, limit),
            None => {
                let buffer = self.transport.register(queue, dtype, len, limit)?;
                if !queue.is_host() {
                    // A queue keeps returned memory: expensive memory is then available when messages are staged.
                    drop(queue.host_memory(dtype, len)?);
                }
                Ok(buffer)
            }
        }
    }
}

impl Devices for Staging {
    fn attach(&self, queue: &Queue, limit: Duration) -> Result<Option<TransportKind>> {
        // In virtual time there are no devices.
        if cfg!(not(feature = "cuda")) || runtime::current().is_some() {
            return Ok(None);
        }
        #[cfg(feature = "cuda")]
        if self.attached.get().is_none() {
            let attached = device_path::attach(&self.transport, &self.traffic, queue, limit)?;
            // No other code has set it in between.
            attached.into_iter().for_each(|attached| drop(self.attached.set(attached)));
        }
        let _ = limit;
        self.attached.get().map_or(Ok(None), |attached| attached.chosen_for(queue))
    }

    fn is_at_work(&self, label: &Label) -> bool {
        self.copying.get() > 0 && self.table.borrow().is_copying(label)
    }
}

/// Returns true if all views of a collective are of host memory.
fn are_on_host(input: Option<&ReadView>, output: &WriteView) -> bool {
    output.is_on_host() && input.is_none_or(ReadView::is_on_host)
}

impl Collectives for Staging {
    fn offers(&self, label: &Label, members: &[usize], input: Option<&ReadView>, output: &WriteView) -> bool {
        let native = match self.path().filter(|_| !are_on_host(input, output)) {
            Some(path) => Some(path.native()),
            None => self.transport.native(),
        };
        native.is_some_and(|native| native.offers(label, members, input, output))
    }

    fn at_once(&self, label: &Label, bytes: &mut [u8]) -> AtOnce {
        match self.transport.native() {
            Some(native) if !self.has_to_wait(label, None) => native.at_once(label, bytes),
            _ => AtOnce::Not,
        }
    }

    fn post(
        &self,
        label: Label,
        members: &Arc<[usize]>,
        input: Option<ReadView>,
        output: WriteView,
    ) -> Ticket {
        let on_host = are_on_host(input.as_ref(), &output);
        if let Some(path) = self.path().filter(|_| !on_host) {
            return mark(path.native().post(label, members, input, output), ON_PATH);
        }
        match self.transport.native() {
            Some(native) if on_host && !self.has_to_wait(&label, None) => {
                native.post(label, members, input, output)
            }
            _ => self.stage(Staged::native(label, members, input, output)),
        }
    }

    fn missing(&self, ticket: Ticket) -> Vec<usize> {
        let (native, ticket) = match self.owner(ticket) {
            OperationOwner::Transport(ticket) => (self.transport.native(), Some(ticket)),
            OperationOwner::Path(path, ticket) => (Some(path.native()), Some(ticket)),
            OperationOwner::Staged(ticket) => (self.transport.native(), self.table.borrow().posted(ticket)),
        };
        native.zip(ticket).map(|(native, ticket)| native.missing(ticket)).unwrap_or_default()
    }

    fn is_queued(&self, ticket: Ticket) -> bool {
        match self.owner(ticket) {
            OperationOwner::Path(path, ticket) => path.native().is_queued(ticket),
            OperationOwner::Transport(_) | OperationOwner::Staged(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
