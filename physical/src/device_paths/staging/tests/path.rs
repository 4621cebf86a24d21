//! Views of devices go by the path that the ranks have; those of the host never do.

use super::*;
use crate::device_paths::device_path::tests::Carrier;
use crate::device_paths::staging::Staging;

/// An end whose endpoint has a path.
fn end(world: &World, queues: Vec<Queue>) -> (End, Rc<Carrier>) {
    let transport = world.open(0).unwrap();
    let path = Rc::new(Carrier::new(Rc::clone(&transport)));
    let device = queues[0].name().to_owned();
    let transport = Staging::with_path(
        transport,
        &device,
        Rc::clone(&path) as Rc<dyn crate::device_paths::device_path::DevicePath>,
    );
    let end = End { transport, poison: Poison::default(), queues, sequence: 0 };
    (end, path)
}

#[test]
fn a_path_carries_messages_of_devices_with_the_bits_of_the_host() {
    for (transport, ranks) in cases(&[1, 2, 3]) {
        let want = spawn(transport, ranks, |world| lands(&mut End::new(&world, hosts(3))).unwrap());
        let late = Late::new(1);
        let queues = || (0..3).map(|_| late.queue()).collect();
        let got = spawn(transport, ranks, |world| {
            let (mut end, path) = end(&world, queues());
            let got = lands(&mut end).unwrap();
            let messages = 2 * (LENGTHS.len() + 1) * LANDS.len();
            assert_eq!(path.carried.get(), if ranks > 1 { messages } else { 0 });
            got
        });
        assert!(got == want, "{transport}, {ranks} ranks");
        spawn(transport, ranks, |world| {
            let (mut end, path) = end(&world, hosts(3));
            lands(&mut end).unwrap();
            assert_eq!(path.carried.get(), 0, "memory of the host goes by the transport");
        });
    }
}

#[test]
fn a_path_carries_out_collectives_of_devices() {
    for (transport, ranks) in cases(&[2, 3]) {
        let all = |end: &mut End| -> Vec<_> {
            let operations = [OperationKind::AllReduce, OperationKind::AllGather];
            operations.into_iter().map(|operation| native(end, operation, 100).unwrap()).collect()
        };
        let want = spawn(transport, ranks, |world| all(&mut End::new(&world, hosts(2))));
        let late = Late::new(2);
        let got = spawn(transport, ranks, |world| {
            let (mut end, path) = end(&world, vec![late.queue(), late.queue()]);
            let got = all(&mut end);
            assert_eq!(path.carried.get(), got.iter().flatten().count());
            got
        });
        assert!(got == want, "{transport}, {ranks} ranks");
    }
}

#[test]
fn what_a_path_was_chosen_for_stays() {
    spawn(TransportKind::Thread, 1, |world| {
        let late = Late::new(0);
        let (end, _) = end(&world, vec![late.queue()]);
        let limit = Duration::from_secs(1);
        if cfg!(feature = "cuda") {
            let again = end.transport.devices().unwrap().attach(&late.queue(), limit).unwrap();
            assert_eq!(again, Some(TransportKind::Ipc));
            let other = Late::new(0);
            let error =
                end.transport.devices().unwrap().attach(&other.queue(), limit).unwrap_err().to_string();
            assert!(error.contains("was attached to late:") && error.contains(", not to late:"), "{error}");
            // Memory of the host goes by the transport as before.
            assert_eq!(end.transport.devices().unwrap().attach(&Queue::host(), limit).unwrap(), None);
            let host = end.transport.register(&Queue::host(), DType::F32, 10, limit).unwrap();
            assert!(host.queue().is_host());
        }
    });
}

/// Buffers of the host may be registered before any rank has a device; this decides nothing.
#[cfg(feature = "cuda")]
#[test]
fn a_device_may_come_after_memory_of_the_host() {
    spawn(TransportKind::Thread, 2, |world| {
        let limit = Duration::from_secs(60);
        let late = Late::new(0);
        let end = End::new(&world, vec![late.queue()]);
        for queue in [Queue::host(), late.queue(), Queue::host(), late.queue()] {
            assert_eq!(end.transport.devices().unwrap().attach(&queue, limit).unwrap(), None);
        }
        assert!(
            end.transport.devices().unwrap().attach(&Late::new(0).queue(), limit).is_err(),
            "the second device is decided"
        );
    });
}

/// Over a transport that shares no memory, or on a device without a path, memory is staged.
#[cfg(feature = "cuda")]
#[test]
fn ranks_without_a_path_attach_and_go_on() {
    for (transport, ranks) in cases(&[1, 3]) {
        spawn(transport, ranks, |world| {
            let limit = Duration::from_secs(60);
            let late = Late::new(0);
            let mut end = End::new(&world, vec![late.queue()]);
            let queue = if world.rank() == 1 { Queue::host() } else { late.queue() };
            assert_eq!(end.transport.devices().unwrap().attach(&queue, limit).unwrap(), None);
            assert_eq!(end.transport.devices().unwrap().attach(&queue, limit).unwrap(), None);
            end.around(&numbers(world.rank(), 100), ReceiveMode::Copy).unwrap();
        });
    }
}
