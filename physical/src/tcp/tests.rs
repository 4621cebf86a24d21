//! What is particular to sockets: partial transfers, and an end that is noticed.

use super::link::Link;
use crate::stream::Read;
use std::io::IoSlice;
use std::net::{TcpListener, TcpStream};

fn pair() -> (Link, Link) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (two, _) = listener.accept().unwrap();
    (Link::new(one).unwrap(), Link::new(two).unwrap())
}

#[test]
fn a_full_socket_takes_nothing_and_goes_on_when_read() {
    let (mut one, mut two) = pair();
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
        if let Read::Bytes(read) = two.read(&mut into).unwrap() {
            in_flight -= read;
        }
    }
    assert_eq!(two.read(&mut into).unwrap(), Read::Nothing);
    assert!(one.write(&[IoSlice::new(&bytes)]).unwrap() > 0);
}

#[test]
fn what_was_sent_before_the_end_is_read_first() {
    let (mut one, mut two) = pair();
    one.write(&[IoSlice::new(b"last words")]).unwrap();
    drop(one);
    let mut into = [0; 100];
    let (mut read, mut got) = (two.read(&mut into).unwrap(), Vec::new());
    while read != Read::End {
        if let Read::Bytes(bytes) = read {
            got.extend_from_slice(&into[..bytes]);
        }
        read = two.read(&mut into).unwrap();
    }
    assert_eq!(got, b"last words");
}
