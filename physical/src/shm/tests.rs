//! Rings: bytes come out as they went in, across the wrap and under a racing reader; damage is an error.

use super::bed::Sleep;
use super::link::Segment;
use crate::doorbell::Doorbell;
use crate::transport::Bell;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn waker() -> Arc<Doorbell> {
    Arc::new(Doorbell::new().unwrap())
}

/// Bytes that differ at every position in question.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn bytes_cross_the_wrap_in_order() {
    let (segment, file) = Segment::create(2, waker()).unwrap();
    let theirs = Segment::map(&file, 2, waker()).unwrap();
    let bytes = pattern(1_000_000);
    let (mut sent, mut got) = (0, Vec::new());
    let mut piece = vec![0; 70_001];
    while got.len() < bytes.len() {
        let (one, two) = bytes[sent..].split_at((bytes.len() - sent).min(333));
        sent += theirs.ring_of(1).write(&[IoSlice::new(one), IoSlice::new(two)]).unwrap();
        let read = segment.ring_of(1).read(&mut piece).unwrap();
        got.extend_from_slice(&piece[..read]);
    }
    assert!(got == bytes);
    assert_eq!(segment.ring_of(0).read(&mut piece).unwrap(), 0, "rings are apart");
}

#[test]
fn a_racing_reader_sees_every_byte_and_a_full_ring_wakes_its_writer() {
    let (segment, file) = Segment::create(1, waker()).unwrap();
    let (writers, files) = Segment::create(1, waker()).unwrap();
    let bytes = pattern(3_000_000);
    let expected = bytes.clone();
    let writer = std::thread::spawn(move || {
        let theirs = Segment::map(&file, 1, waker()).unwrap();
        let mut sent = 0;
        let mut heard = writers.heard();
        while sent < bytes.len() {
            writers.lie_down(Sleep::Futex);
            let written = theirs.ring_of(0).write(&[IoSlice::new(&bytes[sent..])]).unwrap();
            sent += written;
            theirs.nudge();
            if written == 0 {
                writers.sleep(heard, Duration::from_secs(60));
            }
            writers.get_up();
            heard = writers.heard();
        }
    });
    let writers = Segment::map(&files, 1, waker()).unwrap();
    let (started, mut got, mut piece) = (Instant::now(), Vec::new(), vec![0; 9999]);
    while got.len() < expected.len() {
        let read = segment.ring_of(0).read(&mut piece).unwrap();
        got.extend_from_slice(&piece[..read]);
        if read > 0 && segment.ring_of(0).take_blocked() {
            writers.nudge();
        }
        assert!(started.elapsed() < Duration::from_secs(60), "the writer was not woken");
    }
    writer.join().unwrap();
    assert!(got == expected);
}

#[test]
fn a_segment_of_another_shape_is_refused() {
    let (_segment, file) = Segment::create(2, waker()).unwrap();
    assert!(Segment::map(&file, 3, waker()).is_err());
}

#[test]
fn a_bell_rung_before_sleep_ends_it() {
    let (segment, _file) = Segment::create(1, waker()).unwrap();
    let heard = segment.heard();
    let theirs = Arc::clone(&segment);
    let ringer = std::thread::spawn(move || theirs.ring());
    let started = Instant::now();
    segment.sleep(heard, Duration::from_secs(60));
    assert!(started.elapsed() < Duration::from_secs(60));
    ringer.join().unwrap();
}
