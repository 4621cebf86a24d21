//! What is particular to mixed worlds: which pair gets which link, and which endpoint a world gets.

use super::link::{Link, links};
use crate::testing::{spawn_as, spawn_hosts};
use crate::world::JoinOptions;
use crate::{Error, TransportKind};

#[test]
fn memory_goes_to_those_who_share_it_and_sockets_to_everyone_else() {
    use Link::{Memory, Sockets};
    assert_eq!(links(4, &[1, 3], |_| true), [Sockets, Memory(0), Sockets, Memory(1)]);
    assert_eq!(links(4, &[0, 1, 3], |place| place != 1), [Memory(0), Sockets, Sockets, Memory(2)]);
}

#[test]
fn a_world_of_one_host_is_one_of_shared_memory() {
    let native = |hosts: &[usize]| {
        spawn_hosts(hosts, |world| {
            let endpoint = world.open(0).unwrap();
            (endpoint.kind(), endpoint.native().is_some())
        })
    };
    assert_eq!(native(&[0, 0, 0]), [(TransportKind::Shm, true); 3]);
    assert_eq!(native(&[0]), [(TransportKind::Shm, true)]);
    assert_eq!(native(&[0, 1]), [(TransportKind::Mixed, false); 2]);
    assert_eq!(native(&[0, 1, 0]), [(TransportKind::Mixed, false); 3]);
}

#[test]
fn shared_memory_alone_does_not_reach_another_host() {
    let on = |host: &str| JoinOptions {
        transport: TransportKind::Shm,
        host: Some(host.to_owned()),
        deadline: std::time::Duration::from_secs(2),
        ..JoinOptions::default()
    };
    let outcome = std::panic::catch_unwind(|| spawn_as(&[on("one"), on("other")], |_| ()));
    let panic = outcome.unwrap_err();
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("cannot join") && text.contains("shared memory does not reach"), "{text}");
}

#[test]
fn more_sockets_than_make_sense_are_refused() {
    for sockets in [0, 17] {
        let options = JoinOptions { sockets: Some(sockets), ..JoinOptions::default() };
        let error = options.sockets().unwrap_err();
        assert!(matches!(&error, Error::Setup { .. }), "{error}");
        assert!(error.to_string().contains("use 1 to 16"), "{error}");
    }
}
