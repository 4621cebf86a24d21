//! The service alone, with a handler that adds.

use super::Service;
use super::dispatcher::{OutgoingRequest, request_label};
use super::handler::{ElementsPayload, Handler, ReceivedPayload, Reply, Served, ServiceMember};
use super::wire::{INLINE_BYTES, REPLY_BYTES, REQUEST_BYTES, Request};
use crate::asynchronous::pending::Pending;
use crate::testing::{TRANSPORTS, cases, spawn};
use crate::{Buffer, DType, Error, HEADER_BYTES, Result, TransportKind};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use proptest::strategy::{Strategy, ValueTree};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

/// Adds one to every element of its input, and records the order of the numbers.
struct AddOne {
    heard: Mutex<Vec<(usize, u64)>>,
    /// Requests are carried out once they are fewer than this.
    open: AtomicU64,
    panics: bool,
}

impl AddOne {
    fn new() -> Arc<Self> {
        Arc::new(AddOne { heard: Mutex::default(), open: AtomicU64::new(u64::MAX), panics: false })
    }
}

fn fingerprint(len: usize) -> Fingerprint {
    Fingerprint::new(OperationKind::Server, DType::F32, len)
}

impl Handler for AddOne {
    fn admit(&self, _: &ServiceMember, request: &Request) -> Result<Arc<Buffer>> {
        Buffer::zeroed(DType::F32, request.fingerprint.count as usize).map(Arc::new)
    }

    fn serve(&self, from: &ServiceMember, request: &Request, payload: &ReceivedPayload) -> Result<Served> {
        assert!(!self.panics, "as it was told to");
        if request.arguments[0] >= self.open.load(Ordering::Acquire) {
            return Ok(Served::Later);
        }
        self.heard.lock().unwrap().push((from.rank, request.arguments[0]));
        let mut ones = payload.buffer.write(0..payload.buffer.len())?;
        let ones = bytemuck::cast_slice_mut::<u8, f32>(ones.host_bytes_mut().unwrap());
        ones.iter_mut().for_each(|x| *x += 1.0);
        let payload = Some(ElementsPayload { buffer: Arc::clone(&payload.buffer), len: payload.bytes / 4 });
        Ok(Served::Done(Reply { arguments: [request.arguments[0], 7], payload }))
    }
}

/// Sends `len` elements to `to`, and gets them back.
fn add_one(service: &Service, to: usize, number: u64, len: usize) -> Pending<Vec<f32>> {
    let value = number as f32;
    service.submit(move |dispatcher| async move {
        let buffer = Arc::new(Buffer::from_slice(&vec![value; len])?);
        let ask = OutgoingRequest {
            handler: 0,
            verb: 1,
            fingerprint: fingerprint(len),
            arguments: [number, 0, 0],
            payload: Some(ElementsPayload::whole(buffer)),
            into: Some(Arc::new(Buffer::zeroed(DType::F32, len)?)),
        };
        let answer = dispatcher.request(to, ask).await?;
        assert_eq!(answer.arguments, [number, 7]);
        let landed = answer.payload.unwrap();
        assert_eq!(landed.bytes, 4 * len);
        Ok(landed.buffer.host::<f32>()?.to_vec())
    })
}

#[test]
fn everyone_is_answered_at_every_size_and_in_order() {
    const SIZES: [usize; 5] = [0, 1, INLINE_BYTES / 4, INLINE_BYTES / 4 + 1, 100_000];
    for (transport, ranks) in cases(&[1, 2, 3, 4, 8]) {
        let sent = spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let adder = AddOne::new();
            service.register(adder.clone())?;
            // The traffic of a barrier, without other operations.
            let sent = || comm.world().traffic().bytes_sent();
            let before = sent();
            comm.blocking().barrier()?;
            let barrier = sent() - before;
            let before = sent();
            comm.blocking().barrier()?;
            let mut pending = Vec::new();
            for round in 0..40 {
                let to = (comm.rank() + round) % ranks;
                let len = SIZES[round % 5];
                pending.push((round, len, add_one(&service, to, round as u64, len)));
            }
            for (round, len, pending) in pending {
                assert_eq!(pending.blocking()?, vec![round as f32 + 1.0; len]);
            }
            service.blocking().close()?;
            let heard = adder.heard.lock().unwrap();
            for from in 0..ranks {
                let numbers: Vec<u64> = heard.iter().filter(|it| it.0 == from).map(|it| it.1).collect();
                assert!(numbers.is_sorted(), "of rank {from}: {numbers:?}");
            }
            Ok(sent() - before - barrier)
        });
        // Both ways: heads and payloads; a separate payload is a separate message.
        let to_others = (0..40).filter(|round| round % ranks != 0);
        let payloads = to_others.clone().map(|round| 4 * SIZES[round % 5]);
        let apart = payloads.clone().filter(|bytes| *bytes > INLINE_BYTES).count();
        let heads = 2 * HEADER_BYTES + REQUEST_BYTES + REPLY_BYTES;
        let goodbyes = (ranks - 1) * (HEADER_BYTES + REQUEST_BYTES);
        let expected =
            to_others.count() * heads + 2 * (apart * HEADER_BYTES + payloads.sum::<usize>()) + goodbyes;
        for sent in sent.unwrap() {
            assert_eq!(sent, expected as u64, "{ranks} ranks over {transport}");
        }
    }
}

#[test]
fn what_waits_holds_nobody_else_up_and_goes_on_when_something_happens() {
    for (transport, ranks) in cases(&[3]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            let adder = AddOne::new();
            service.register(adder.clone())?;
            adder.open.store(100, Ordering::Release);
            comm.blocking().barrier()?;
            match comm.rank() {
                0 => {
                    let waits = add_one(&service, 2, 100, 3);
                    comm.blocking().barrier()?;
                    // Rank 1 has been served.
                    comm.blocking().barrier()?;
                    assert!(!waits.is_done());
                    comm.blocking().barrier()?;
                    assert_eq!(waits.blocking()?, [101.0; 3]);
                }
                1 => {
                    comm.blocking().barrier()?;
                    for number in 0..20 {
                        assert_eq!(add_one(&service, 2, number, 1).blocking()?, [number as f32 + 1.0]);
                    }
                    comm.blocking().barrier()?;
                    comm.blocking().barrier()?;
                }
                _ => {
                    comm.blocking().barrier()?;
                    comm.blocking().barrier()?;
                    comm.blocking().barrier()?;
                    adder.open.store(101, Ordering::Release);
                    service.wake();
                }
            }
            service.blocking().close()
        })
        .unwrap();
    }
}

#[test]
fn a_rank_that_finishes_early_goes_on_serving() {
    for (transport, ranks) in cases(&[2, 4]) {
        spawn(transport, ranks, |comm| {
            let service = comm.block_on(Service::start(&comm))?;
            service.register(AddOne::new())?;
            comm.blocking().barrier()?;
            if comm.rank() == 0 {
                for number in 0..50 {
                    let to = 1 + number as usize % (ranks - 1);
                    assert_eq!(add_one(&service, to, number, 1).blocking()?, [number as f32 + 1.0]);
                }
            }
            service.blocking().close()?;
            let late = add_one(&service, 0, 1, 1).blocking();
            assert!(matches!(&late, Err(Error::Usage { what, .. }) if what.contains("closed")), "{late:?}");
            Ok(())
        })
        .unwrap();
    }
}

/// Runs `body` on three ranks, each with a service, and gives the errors that they end with. Those in `must` have one;
/// others may have closed their service before.
fn fail(
    transport: TransportKind,
    must: &[usize],
    body: impl Fn(&Service, usize) -> Result<()> + Sync,
) -> Vec<(usize, Error)> {
    let open = Barrier::new(3);
    let errors = spawn(transport, 3, |comm| {
        let service = comm.block_on(Service::start(&comm))?;
        let panics = comm.rank() == 1;
        let heard = Mutex::default();
        service.register(Arc::new(AddOne { heard, open: AtomicU64::new(u64::MAX), panics }))?;
        open.wait();
        Ok(body(&service, comm.rank()).and_then(|()| service.blocking().close()).err())
    });
    let errors = errors.unwrap();
    assert!(must.iter().all(|rank| errors[*rank].is_some()), "over {transport}: {errors:?}");
    errors.into_iter().enumerate().filter_map(|(rank, error)| Some((rank, error?))).collect()
}

#[test]
fn a_handler_that_panics_ends_everyones_service_and_is_named() {
    // The handler's own rank learns it from the answer, too.
    for (transport, asker) in TRANSPORTS.into_iter().flat_map(|it| [(it, 0), (it, 1)]) {
        let errors = fail(transport, &[asker, 1], |service, rank| match rank {
            rank if rank == asker => {
                let error = add_one(service, 1, 0, 5000).blocking().unwrap_err();
                assert!(error.to_string().contains("panicked"), "rank {rank} over {transport}: {error}");
                Err(error)
            }
            _ => Ok(()),
        });
        for (rank, error) in &errors {
            let named = matches!(error, Error::PeerFailed { culprit, .. } if culprit.rank == 1);
            assert!(*rank == 1 || named, "rank {rank} over {transport}: {error}");
            assert!(error.to_string().contains("panicked"), "rank {rank} over {transport}: {error}");
        }
    }
}

#[test]
fn a_request_for_nothing_blames_who_sent_it() {
    for transport in TRANSPORTS {
        let errors = fail(transport, &[0, 2], |service, rank| {
            if rank != 2 {
                return Ok(());
            }
            let arguments = [0; 3];
            let fingerprint = fingerprint(0);
            let ask =
                OutgoingRequest { handler: 9, verb: 0, fingerprint, arguments, payload: None, into: None };
            service.submit(|dispatcher| async move { dispatcher.request(0, ask).await.map(drop) }).blocking()
        });
        for (_, error) in &errors {
            assert!(matches!(error, Error::PeerFailed { culprit, .. } if culprit.rank == 2), "{error}");
            assert!(error.to_string().contains("an unknown handler"), "{error}");
        }
    }
}

/// Sends bytes as if they were a request.
fn send_raw(service: &Service, to: usize, message: Vec<u8>) -> Result<()> {
    let sent = service.submit(move |dispatcher| async move {
        let buffer = Buffer::from_slice(&message)?;
        dispatcher.comm.begin(request_label()?)?.send(to, 0, &buffer, 0..buffer.len())?.await
    });
    sent.blocking().map(drop)
}

#[test]
fn bytes_that_are_no_request_blame_who_sent_them() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for transport in TRANSPORTS {
        for len in [0, 1, REQUEST_BYTES - 1, REQUEST_BYTES, REQUEST_BYTES + 100, REQUEST_BYTES + INLINE_BYTES]
        {
            let random = proptest::collection::vec(proptest::num::u8::ANY, len);
            let message = random.new_tree(&mut runner).unwrap().current();
            let errors = fail(transport, &[0], |service, rank| match rank {
                2 => send_raw(service, 0, message.clone()),
                _ => Ok(()),
            });
            for (_, error) in &errors {
                assert!(matches!(error, Error::PeerFailed { culprit, .. } if culprit.rank == 2), "{error}");
            }
        }
    }
}
