//! `--transport tcp` never uses shared memory. In a separate process, since other tests do.

use hexagram_physical::TransportKind;
use hexagram_physical::testing::{in_own_process, spawn};

#[test]
fn tcp_never_touches_shared_memory() {
    in_own_process("tcp_only::tcp_never_touches_shared_memory", || {
        spawn(TransportKind::Tcp, 2, |world| {
            let _endpoint = world.open(0).unwrap();
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert!(!maps.contains("memfd:") && !maps.contains("/dev/shm"), "{maps}");
        });
        // The same look does find a segment where there is one.
        spawn(TransportKind::Shm, 2, |world| {
            let _endpoint = world.open(0).unwrap();
            assert!(std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:hexagram"));
        });
    });
}
