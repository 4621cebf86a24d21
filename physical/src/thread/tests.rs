//! Mailboxes: a parcel goes to one taker, and a bell is never lost.

use super::link::{Mailbox, Parcel};
use crate::dtype::DType;
use crate::fingerprint::{Fingerprint, OperationKind};
use crate::memory::Buffer;
use crate::tag::Tag;
use crate::transport::{Bell, Label};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn parcel() -> Arc<Parcel> {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::U8, 1);
    let label = Label { tag: Tag::new(0, 0, 0, 0).unwrap(), fingerprint };
    let buffer = Buffer::zeroed(DType::U8, 1).unwrap();
    Parcel::new(0, label, buffer.read(0..1).unwrap())
}

#[test]
fn a_parcel_is_taken_once() {
    let parcel = parcel();
    assert!(parcel.take().is_some());
    assert!(parcel.take().is_none(), "the receiver or the cancelling sender, not both");
}

#[test]
fn parcels_come_in_order_and_once() {
    let mailbox = Mailbox::default();
    let first = parcel();
    let second = parcel();
    mailbox.put(Arc::clone(&first));
    mailbox.put(Arc::clone(&second));
    let parcels = mailbox.empty();
    assert!(Arc::ptr_eq(&parcels[0], &first) && Arc::ptr_eq(&parcels[1], &second));
    assert!(mailbox.empty().is_empty());
}

#[test]
fn a_bell_rung_before_sleep_ends_it() {
    let mailbox = Mailbox::default();
    mailbox.ring();
    let started = Instant::now();
    mailbox.sleep(LONG);
    assert!(started.elapsed() < LONG);
}

#[test]
fn a_bell_from_another_thread_ends_sleep() {
    let mailbox = Arc::new(Mailbox::default());
    for _ in 0..100 {
        let theirs = Arc::clone(&mailbox);
        let ringer = std::thread::spawn(move || theirs.put(parcel()));
        let started = Instant::now();
        while mailbox.empty().is_empty() {
            mailbox.sleep(LONG);
            assert!(started.elapsed() < LONG);
        }
        ringer.join().unwrap();
    }
}
