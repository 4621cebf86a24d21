//! A test of a primitive or an algorithm on several ranks: [`spawn`].

mod reference;

pub use reference::Reference;

use crate::{Communicator, Error, Result, TransportKind, World};
use hexagram_physical::testing;
#[cfg(feature = "testing")]
pub use hexagram_physical::testing::late::Late;
pub use hexagram_physical::testing::{
    TRANSPORTS, buffer, cases, free_port, in_own_process, is_deep, lengths, mappings, on_threads, queue,
    skipped_under_mpi, sources, transports, zeroed,
};

/// Runs `body` once per rank, each on a separate thread with a communicator of all ranks. Returns the results by
/// rank, or the error that was the root cause.
///
/// # Errors
/// The error of the lowest rank that failed by itself, or of the lowest rank if all errors report other ranks.
///
/// # Panics
/// If a rank panics, or the world cannot be created.
///
/// ```
/// use hexagram_logical::TransportKind;
/// use hexagram_logical::testing::spawn;
///
/// let ranks = spawn(TransportKind::Shm, 3, |comm| Ok(comm.rank()));
/// assert_eq!(ranks.unwrap(), [0, 1, 2]);
/// ```
pub fn spawn<R: Send>(
    transport: TransportKind,
    ranks: usize,
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    all_or_cause(testing::spawn(transport, ranks, on_channel(&body)))
}

/// Runs ranks like [`spawn`], simulated, in an order of events that a seed determines.
///
/// # Errors
/// As [`spawn`].
///
/// # Panics
/// As [`spawn`].
#[cfg(feature = "sim")]
pub fn spawn_in_order<R: Send>(
    seed: u64,
    ranks: usize,
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    all_or_cause(testing::spawn_in_order(seed, ranks, on_channel(&body)))
}

/// Runs ranks like [`spawn`], with the mixed transport; rank r pretends to run on host `hosts[r]`.
///
/// # Errors
/// As [`spawn`].
///
/// # Panics
/// As [`spawn`].
pub fn spawn_hosts<R: Send>(
    hosts: &[usize],
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    all_or_cause(testing::spawn_hosts(hosts, on_channel(&body)))
}

/// Returns the results of all ranks, or the error that was the root cause. It depends on timing which ranks report the failure
/// of a different rank instead of their own error.
///
/// # Errors
/// The first error that does not report another rank, or else the first.
pub fn all_or_cause<R>(outcomes: impl IntoIterator<Item = Result<R>>) -> Result<Vec<R>> {
    let tells_of_another = |error: &Error| matches!(error, Error::PeerFailed { .. } | Error::Poisoned { .. });
    let mut results = Vec::new();
    let mut cause: Option<Error> = None;
    for outcome in outcomes {
        match outcome {
            Ok(result) => results.push(result),
            Err(error) => match &cause {
                Some(first) if !tells_of_another(first) || tells_of_another(&error) => {}
                _ => cause = Some(error),
            },
        }
    }
    cause.map_or(Ok(results), Err)
}

fn on_channel<R>(body: &impl Fn(Communicator) -> Result<R>) -> impl Fn(World) -> Result<R> {
    move |world| {
        let comm = Communicator::open(&world, 0)?;
        if !testing::queue().is_host() {
            comm.test_on(testing::queue);
            // Tests without this variable use messages through the host.
            if std::env::var_os("HEXAGRAM_DEVICE_PATH").is_some() {
                comm.attach(&testing::queue())?;
            }
        }
        body(comm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_returned_whoever_tells_of_it() {
        for culprit in 0..3 {
            let outcome = spawn(TransportKind::Thread, 3, |comm| {
                if comm.rank() != culprit {
                    return comm.blocking().barrier();
                }
                let error = Error::usage("this rank cannot take part", "let it");
                comm.give_up(&error);
                Err(error)
            });
            assert!(matches!(outcome, Err(Error::Usage { .. })), "{outcome:?}");
        }
    }
}
