//! Channels that are opened: once each, apart from each other, with ranks and not with foreign connections.

use super::Matrix;
use crate::Error;
use crate::testing::spawn;

/// Opens two channels from two threads, and one of them again.
pub fn channels_are_apart_and_open_once(on: &Matrix) {
    for (transport, ranks) in on.cases(&[3]) {
        spawn(transport, ranks, |world| {
            // Opened from two threads and in both orders, as a training and a communication thread may.
            std::thread::scope(|scope| {
                let second = scope.spawn(|| world.open(7).unwrap().rank());
                assert_eq!(world.open(3).unwrap().rank(), world.rank());
                assert_eq!(second.join().unwrap(), world.rank());
            });
            assert!(matches!(world.open(3), Err(Error::Usage { .. })));
        });
    }
}
