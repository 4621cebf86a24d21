//! The exchange over every transport, and a path for tests: it carries memory of any device by messages of the host, as
//! staging does, but at once.

use super::choice::{GpuFacts, RankFacts, RankMemory};
use super::{DevicePath, MessagePath, PathPreference, exchange};
use crate::device::Queue;
use crate::error::Result;
use crate::memory::dtype::{DType, ReduceOp};
use crate::memory::{Buffer, ReadView, WriteView};
use crate::testing::{cases, spawn};
use crate::transport::native::Collectives;
use crate::transport::{Label, ReceiveMode, Received, Source, Ticket, Transport, TransportKind};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Memory of a device for which something arrives.
struct Arriving {
    ticket: Ticket,
    view: WriteView,
    copy: Buffer,
    reduce: Option<ReduceOp>,
}

/// The path for tests.
pub(crate) struct Carrier {
    transport: Rc<dyn Transport>,
    arriving: RefCell<Vec<Arriving>>,
    /// Operations so far.
    pub(crate) carried: Cell<usize>,
}

impl Carrier {
    pub(crate) fn new(transport: Rc<dyn Transport>) -> Self {
        Carrier { transport, arriving: RefCell::default(), carried: Cell::new(0) }
    }

    fn arrive(&self, ticket: Ticket, view: WriteView, copy: Buffer, reduce: Option<ReduceOp>) -> Ticket {
        self.carried.set(self.carried.get() + 1);
        self.arriving.borrow_mut().push(Arriving { ticket, view, copy, reduce });
        ticket
    }
}

fn down(view: &ReadView) -> ReadView {
    view.copied_down().unwrap().into_read()
}

impl DevicePath for Carrier {
    fn kind(&self) -> TransportKind {
        TransportKind::Ipc
    }

    fn messages(&self) -> Option<&dyn MessagePath> {
        Some(self)
    }

    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Received>> {
        let Poll::Ready(outcome) = self.transport.poll(ticket, context) else { return Poll::Pending };
        let mut arriving = self.arriving.borrow_mut();
        let Some(at) = arriving.iter().position(|arriving| arriving.ticket == ticket) else {
            return Poll::Ready(outcome);
        };
        let Arriving { mut view, copy, reduce, .. } = arriving.remove(at);
        let got = outcome?;
        let arrived = copy.read_all()?.into_first(got.bytes);
        match reduce {
            Some(op) => {
                let scratch = Buffer::zeroed_on(&view.queue(), view.dtype(), view.len())?;
                view.reduce_up(op, arrived, &scratch)?;
            }
            None => view.copy_up(arrived),
        }
        Poll::Ready(Ok(got))
    }

    fn cancel(&self, ticket: Ticket) {
        self.transport.cancel(ticket);
        self.arriving.borrow_mut().retain(|arriving| arriving.ticket != ticket);
    }

    fn progress(&self) -> bool {
        false
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        self.transport.moved(ticket)
    }

    fn native(&self) -> &dyn Collectives {
        self
    }

    fn register(&self, queue: &Queue, dtype: DType, len: usize, _limit: Duration) -> Result<Buffer> {
        Buffer::zeroed_on(queue, dtype, len)
    }
}

impl MessagePath for Carrier {
    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        self.carried.set(self.carried.get() + 1);
        self.transport.post_send(to, label, down(&view))
    }

    fn post_recv(&self, from: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket {
        let copy = Buffer::zeroed(view.dtype(), view.len()).unwrap();
        let stored = if land == ReceiveMode::AtMost { land } else { ReceiveMode::Copy };
        let ticket = self.transport.post_recv(from, label, copy.write_all().unwrap(), stored);
        let reduce = if let ReceiveMode::Reduce(op) = land { Some(op) } else { None };
        self.arrive(ticket, view, copy, reduce)
    }
}

impl Collectives for Carrier {
    fn offers(&self, label: &Label, members: &[usize], input: Option<&ReadView>, output: &WriteView) -> bool {
        self.transport.native().is_some_and(|native| native.offers(label, members, input, output))
    }

    fn post(
        &self,
        label: Label,
        members: &Arc<[usize]>,
        input: Option<ReadView>,
        output: WriteView,
    ) -> Ticket {
        let native = self.transport.native().unwrap();
        let copy = Buffer::zeroed(output.dtype(), output.len()).unwrap();
        if output.is_on_host() {
            return native.post(label, members, input.as_ref().map(down), output);
        }
        if let Some((down, event)) = output.copy_down().unwrap().filter(|_| input.is_none()) {
            assert!(event.wait(Duration::from_secs(60)));
            copy.write_all().unwrap().copy_from(&down.read_all().unwrap()).unwrap();
        }
        let input = input.map(|input| if input.is_on_host() { input } else { down(&input) });
        let ticket = native.post(label, members, input, copy.write_all().unwrap());
        self.arrive(ticket, output, copy, None)
    }

    fn missing(&self, ticket: Ticket) -> Vec<usize> {
        self.transport.native().unwrap().missing(ticket)
    }
}

#[test]
fn everyone_learns_of_everyone_over_every_transport() {
    let identity = |rank: usize| {
        let gpu = GpuFacts { uuid: [rank as u8; 16], ..GpuFacts::default() };
        RankFacts::new(PathPreference::Auto, [9; 16], RankMemory::Gpu(gpu))
    };
    for (transport, ranks) in cases(&[1, 2, 3, 4, 7]) {
        let heard = spawn(transport, ranks, |world| {
            let mine = identity(world.rank());
            exchange::exchange(&*world.open(0).unwrap(), &mine, Duration::from_secs(60)).unwrap()
        });
        let want: Vec<RankFacts> = (0..ranks).map(identity).collect();
        assert!(heard.iter().all(|heard| *heard == want), "{transport}, {ranks} ranks");
    }
}

#[test]
fn a_rank_that_attaches_nothing_is_named() {
    let mine = || RankFacts::new(PathPreference::Auto, [9; 16], RankMemory::Host);
    let errors = spawn(TransportKind::Thread, 2, |world| {
        let endpoint = world.open(0).unwrap();
        let wait = Duration::from_millis(300);
        if world.rank() == 1 {
            // Until the other one has given up.
            while endpoint.health().verdict().is_none() {
                endpoint.park(Duration::from_millis(20));
            }
            return None;
        }
        exchange::exchange(&*endpoint, &mine(), wait).err().map(|error| error.to_string())
    });
    let error = errors[0].as_ref().unwrap();
    assert!(error.contains("no answer from rank 1") && error.contains("attach"), "{error}");
}
