//! Endpoint of one rank on a host: rings for messages, control blocks and registered memory for native collectives, and
//! one place to park.

use super::affinity;
use super::affinity::CoreMover;
use super::collectives::{ShmCollectives, ShmContext};
use super::control_block::LANES;
use super::link::ShmLink;
use super::park::ParkMode;
use super::segment::Segment;
use super::segment::region::Region;
use super::segment::registration::RegistrationSockets;
use crate::backends::stream::Parking;
use crate::backends::stream::endpoint::StreamEndpoint;
use crate::control::health::Health;
use crate::device::Queue;
use crate::error::{Error, ErrorContext, Result};
use crate::memory::dtype::DType;
use crate::memory::{Buffer, ReadView, WriteView};
use crate::transport::native::AtOnce;
use crate::transport::pages::PAGE;
use crate::transport::tickets::Tickets;
use crate::transport::{
    Bell, Label, ReceiveMode, Received, SharedMemory, SharedPages, Source, Ticket, Transport, TransportKind,
    native,
};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Parking place of one rank until a peer on its host rings.
pub(crate) struct ShmParking {
    own: Arc<Segment>,
    peers: Vec<Arc<Segment>>,
    mode: ParkMode,
    mover: CoreMover,
    /// Count of the bell when this rank last looked for work.
    last_bell: u32,
}

impl ShmParking {
    /// Creates the place for the owner of a segment; `peers` are the segments of the ranks that share memory with it.
    pub(super) fn new(own: Arc<Segment>, peers: Vec<Arc<Segment>>, mode: ParkMode) -> Self {
        ShmParking { own, peers, mode, mover: CoreMover::default(), last_bell: 0 }
    }

    /// Returns true if the bell has rung since this rank last looked for work.
    pub(crate) fn was_rung(&self) -> bool {
        self.own.bell_count() != self.last_bell
    }
}

impl Parking for ShmParking {
    fn shares_core(&mut self) -> bool {
        let here = affinity::current();
        let cores = self.peers.iter().filter_map(|peer| peer.core());
        let shared = cores.clone().any(|core| core == here) && !self.mover.leave(here, Instant::now(), cores);
        self.own.show_core(affinity::current());
        shared
    }

    fn announce_park(&mut self) {
        self.own.announce_park(self.mode);
    }

    fn park(&mut self, at_most: Duration) {
        // A full ring has raised its flag, so freed bytes wake this rank as new bytes do.
        if !self.was_rung() {
            self.own.park(self.last_bell, at_most);
        }
        self.end_park();
    }

    fn end_park(&mut self) {
        self.own.end_park();
        self.last_bell = self.own.bell_count();
    }
}

/// Endpoint of one rank in a world of one host.
pub(super) struct ShmEndpoint {
    stream: StreamEndpoint<ShmLink, ShmParking>,
    native: RefCell<ShmCollectives>,
    sockets: RegistrationSockets,
}

/// Number of the registration of [`SharedMemory::share_pages`], which no buffer has.
const PAGES: u32 = u32::MAX;

/// Bit that is set in the tickets of native operations, to distinguish them from those of messages.
const NATIVE: u32 = 1 << 31;

/// Marks the ticket of a native operation.
fn mark_native(ticket: Ticket) -> Ticket {
    Ticket { index: ticket.index | NATIVE, ..ticket }
}

/// Removes the mark from a native ticket. Returns `None` for tickets of messages.
fn unmark_native(ticket: Ticket) -> Option<Ticket> {
    (ticket.index & NATIVE != 0).then_some(Ticket { index: ticket.index & !NATIVE, ..ticket })
}

impl ShmEndpoint {
    /// Creates an endpoint over the rings of `stream`.
    pub(super) fn new(
        stream: StreamEndpoint<ShmLink, ShmParking>,
        context: ShmContext,
        sockets: RegistrationSockets,
    ) -> Self {
        ShmEndpoint { stream, native: RefCell::new(ShmCollectives::new(context)), sockets }
    }

    /// Calls `work` with the tickets of native operations.
    fn with_tickets<R>(&self, work: impl FnOnce(&mut Tickets) -> R) -> R {
        work(self.native.borrow_mut().tickets())
    }

    /// Fails operations that this rank executes natively and a peer by messages, or vice versa. Called before
    /// parking, since neither side would ever get an answer.
    fn find_mismatches(&self) {
        let suspects: Vec<(Ticket, Label)> = self.native.borrow().entering().collect();
        for (ticket, label) in suspects {
            let Some((peer, theirs)) = self.stream.early_in_lane(&label) else { continue };
            // The sender may have completed this operation: then all ranks have entered by now.
            let mut native = self.native.borrow_mut();
            native.progress();
            if native.entering().any(|(entering, _)| entering == ticket) {
                let peer = self.health().peers()[peer].clone();
                native.fail(ticket, label.mismatch(theirs, peer));
            }
        }
        for (ticket, peer, label) in self.stream.awaited() {
            let native = self.native.borrow();
            let Some(theirs) = latest_native(&native.context, peer, &label) else { continue };
            // All of its earlier messages are in the ring by now.
            while self.stream.progress() {}
            if self.stream.awaited().iter().any(|(awaited, ..)| *awaited == ticket) {
                let peer = self.health().peers()[peer].clone();
                self.stream.fail(ticket, label.mismatch(theirs.fingerprint, peer));
            }
        }
    }
}

/// Returns a native operation of `peer` that proves that no message for `label` will come.
fn latest_native(context: &ShmContext, peer: usize, label: &Label) -> Option<Label> {
    let lane = label.tag.lane();
    if !label.tag.is_of_world() || lane >= LANES {
        return None;
    }
    let latest_native = context.segments[peer].control_block().latest_native(lane)?;
    let proof =
        latest_native.tag.same_lane(&label.tag) && latest_native.tag.sequence() >= label.tag.sequence();
    proof.then_some(latest_native)
}

impl native::Collectives for ShmEndpoint {
    fn offers(&self, label: &Label, _: &[usize], input: Option<&ReadView>, output: &WriteView) -> bool {
        self.native.borrow().offers(label, input, output)
    }

    fn at_once(&self, label: &Label, bytes: &mut [u8]) -> AtOnce {
        let mut native = self.native.borrow_mut();
        if native.is_time_to_look_around() {
            // Moves this rank if another core has fewer.
            self.stream.crowded();
        }
        native.at_once(label, bytes)
    }

    fn post(&self, label: Label, _: &Arc<[usize]>, input: Option<ReadView>, output: WriteView) -> Ticket {
        mark_native(self.native.borrow_mut().post(label, input, output))
    }

    fn missing(&self, ticket: Ticket) -> Vec<usize> {
        unmark_native(ticket).map_or_else(Vec::new, |ticket| self.native.borrow().missing(ticket))
    }
}

impl SharedMemory for ShmEndpoint {
    fn share_pages(&self, limit: Duration) -> Result<SharedPages> {
        let (mine, file) = Region::create(PAGE)?;
        let theirs = self.sockets.exchange_regions(PAGES, PAGE, Some(&file), limit);
        let theirs = theirs.map_err(|error| self.health().explain(error, ErrorContext::Registering))?;
        let theirs = theirs.ok_or_else(|| {
            Error::setup(
                "another rank registers no memory here",
                "make the same calls in the same order on all ranks",
            )
        })?;
        let of = |region: Option<Arc<Region>>| region.unwrap_or_else(|| Arc::clone(&mine));
        let keeper: Vec<Arc<Region>> = theirs.into_iter().map(of).collect();
        let pages: Vec<_> = keeper.iter().filter_map(|region| NonNull::new(region.pointer())).collect();
        Ok(SharedPages { pages, keeper: Arc::new(keeper) })
    }
}

impl Transport for ShmEndpoint {
    fn kind(&self) -> TransportKind {
        self.stream.kind()
    }

    fn rank(&self) -> usize {
        self.stream.rank()
    }

    fn health(&self) -> &Arc<Health> {
        self.stream.health()
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.stream.bell()
    }

    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        self.stream.post_send(to, label, view)
    }

    fn post_recv(&self, from: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket {
        self.stream.post_recv(from, label, view, land)
    }

    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Received>> {
        match unmark_native(ticket) {
            Some(ticket) => self.with_tickets(|tickets| tickets.poll(ticket)),
            None => self.stream.poll(ticket, context),
        }
    }

    fn cancel(&self, ticket: Ticket) {
        match unmark_native(ticket) {
            Some(ticket) => self.native.borrow_mut().cancel(ticket),
            None => self.stream.cancel(ticket),
        }
    }

    fn progress(&self) -> bool {
        let moved = self.native.borrow_mut().progress();
        self.stream.progress() || moved
    }

    fn crowded(&self) -> bool {
        self.stream.crowded()
    }

    fn park(&self, at_most: Duration) {
        self.find_mismatches();
        self.stream.park_unless(at_most, || self.native.borrow_mut().progress());
    }

    fn ended(&self, peer: usize) -> Option<String> {
        self.stream.ended(peer).or_else(|| self.native.borrow().ended(peer))
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        match unmark_native(ticket) {
            Some(ticket) => self.with_tickets(|tickets| tickets.moved(ticket)),
            None => self.stream.moved(ticket),
        }
    }

    fn native(&self) -> Option<&dyn native::Collectives> {
        Some(self)
    }

    fn shared_memory(&self) -> Option<&dyn SharedMemory> {
        Some(self)
    }

    fn register(&self, queue: &Queue, dtype: DType, len: usize, limit: Duration) -> Result<Buffer> {
        let bytes = len.checked_mul(dtype.size()).ok_or_else(|| {
            Error::usage(format!("{len} elements of {dtype} exceed the address space"), "use fewer")
        })?;
        let region = if queue.is_host() { Some(Region::create(bytes)?) } else { None };
        let mut native = self.native.borrow_mut();
        let index = native.context.regions.next_index();
        let file = region.as_ref().map(|(_, file)| file);
        let theirs = self.sockets.exchange_regions(index, bytes, file, limit);
        let theirs = theirs.map_err(|error| self.health().explain(error, ErrorContext::Registering))?;
        let Some(((mine, _), theirs)) = region.zip(theirs) else {
            return Buffer::zeroed_on(queue, dtype, len);
        };
        let pointer = NonNull::new(mine.pointer())
            .ok_or_else(|| Error::usage("shared memory was mapped at address 0", "report this as a bug"))?;
        let (registration, keeper) = native.context.regions.insert(mine, theirs);
        // SAFETY: a fresh mapping of at least `bytes` zeroed bytes at a page's start, unmapped when the keeper is dropped; only
        // the buffer accesses it in this process.
        Ok(unsafe { Buffer::shared(pointer, keeper, registration, dtype, len) })
    }
}
