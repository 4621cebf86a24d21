//! Sockets: partial transfers, stripes, and the end of a stream.

use super::link::{PARTS, STRIPE, TcpLink, prefix};
use crate::backends::socket::Socket;
use crate::backends::stream::{Link, ReadOutcome};
use std::io::IoSlice;
use std::net::{TcpListener, TcpStream};

/// Creates both ends of a link with this many sockets.
fn pair(sockets: usize) -> (TcpLink, TcpLink) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = |_| {
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let two = listener.accept().unwrap().0;
        (Box::new(one) as Box<dyn Socket>, Box::new(two) as Box<dyn Socket>)
    };
    let (ones, twos) = (0..sockets).map(connect).unzip();
    (TcpLink::new(ones, true).unwrap(), TcpLink::new(twos, true).unwrap())
}

/// Reports that everything may have changed, as epoll would.
fn refresh(link: &TcpLink) {
    link.sockets().iter().for_each(|socket| socket.readiness().report(true, true, false));
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
fn a_full_link_takes_nothing_and_goes_on_when_read() {
    for sockets in [1, 2, 5] {
        let (mut one, mut two) = pair(sockets);
        let bytes = vec![7u8; 1 << 20];
        let mut in_flight = 0;
        loop {
            match one.write(&[IoSlice::new(&bytes), IoSlice::new(&bytes)]).unwrap() {
                0 => break,
                written => in_flight += written,
            }
        }
        let mut into = vec![0; 1 << 20];
        while in_flight > 0 {
            refresh(&two);
            if let ReadOutcome::Bytes(read) = two.read(&mut into).unwrap() {
                in_flight -= read;
            }
        }
        refresh(&two);
        assert_eq!(two.read(&mut into).unwrap(), ReadOutcome::Nothing);
        assert_eq!(one.write(&[IoSlice::new(&bytes)]).unwrap(), 0, "no free space was reported");
        refresh(&one);
        assert!(one.write(&[IoSlice::new(&bytes)]).unwrap() > 0);
    }
}

#[test]
fn stripes_are_reassembled_in_order() {
    for sockets in [1, 2, 3, 7] {
        let (mut one, mut two) = pair(sockets);
        let sent = pattern(5 * STRIPE + 12_345);
        let mut written = 0;
        let mut got = Vec::new();
        let mut piece = vec![0; 100_003];
        while got.len() < sent.len() {
            // Odd pieces, so that stripes end in the middle of parts.
            let (head, tail) = sent[written..].split_at((sent.len() - written).min(77_777));
            written += one.write(&[IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)]).unwrap();
            if let ReadOutcome::Bytes(read) = two.read(&mut piece).unwrap() {
                got.extend_from_slice(&piece[..read]);
            }
            refresh(&one);
            refresh(&two);
        }
        assert!(got == sent, "{sockets} sockets");
    }
}

#[test]
fn bytes_sent_before_the_end_are_read_first() {
    let (mut one, mut two) = pair(1);
    one.write(&[IoSlice::new(b"last words")]).unwrap();
    drop(one);
    two.sockets()[0].readiness().report(true, true, true);
    let mut into = [0; 100];
    let mut read = two.read(&mut into).unwrap();
    let mut got = Vec::new();
    while read != ReadOutcome::End {
        if let ReadOutcome::Bytes(bytes) = read {
            got.extend_from_slice(&into[..bytes]);
        }
        read = two.read(&mut into).unwrap();
    }
    assert_eq!(got, b"last words");
}

#[test]
fn a_part_is_cut_where_the_stripe_ends() {
    let one = pattern(10);
    let two = pattern(20);
    let parts = [IoSlice::new(&one), IoSlice::new(&[]), IoSlice::new(&two)];
    for limit in 0..40 {
        let mut space = [IoSlice::new(&[]); PARTS];
        let (cut, len) = prefix(&parts, limit, &mut space);
        let whole: Vec<u8> = one.iter().chain(&two).copied().take(limit).collect();
        assert_eq!(cut.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>(), whole);
        assert_eq!(len, whole.len());
    }
}
