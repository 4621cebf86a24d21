//! Mailboxes: a message is taken by one side only, and no ring of the bell is lost.

use super::link::{ThreadMailbox, ThreadMessage};
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::tag::Tag;
use crate::transport::{Bell, Label};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn message() -> Arc<ThreadMessage> {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::U8, 1);
    let label = Label { tag: Tag::new(0, 0, 0, 0).unwrap(), fingerprint };
    let buffer = Buffer::zeroed(DType::U8, 1).unwrap();
    ThreadMessage::new(0, label, buffer.read(0..1).unwrap())
}

#[test]
fn a_message_is_taken_once() {
    let message = message();
    assert!(message.take().is_some());
    assert!(message.take().is_none(), "the receiver or the cancelling sender, not both");
}

#[test]
fn messages_come_in_order_and_once() {
    let mailbox = ThreadMailbox::default();
    let first = message();
    let second = message();
    mailbox.put(Arc::clone(&first));
    mailbox.put(Arc::clone(&second));
    let messages = mailbox.take_all();
    assert!(Arc::ptr_eq(&messages[0], &first) && Arc::ptr_eq(&messages[1], &second));
    assert!(mailbox.take_all().is_empty());
}

#[test]
fn a_bell_rung_before_a_park_ends_it() {
    let mailbox = ThreadMailbox::default();
    mailbox.ring();
    let started = Instant::now();
    mailbox.park(LONG);
    assert!(started.elapsed() < LONG);
}

#[test]
fn a_bell_from_another_thread_ends_a_park() {
    let mailbox = Arc::new(ThreadMailbox::default());
    for _ in 0..100 {
        let theirs = Arc::clone(&mailbox);
        let ringer = std::thread::spawn(move || theirs.put(message()));
        let started = Instant::now();
        while mailbox.take_all().is_empty() {
            mailbox.park(LONG);
            assert!(started.elapsed() < LONG);
        }
        ringer.join().unwrap();
    }
}
