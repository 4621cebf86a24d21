//! Warns if another program seems to listen at the address of rank 0.
//!
//! The rank continues to wait after the warning: rank 0 may be late, and the other program, such as an earlier job, may end
//! soon.

use super::rendezvous_member::Joiner;
use std::time::Duration;
use std::{fmt, io};

/// Consecutive attempts without a greeting that are a sign: rank 0 may be busy, or have evicted a connection.
const UNGREETED: u32 = 3;
/// Time without the secret of rank 0 that is a sign, if a program listens: a rank 0 that cannot listen makes no
/// secret.
const SECRETLESS: Duration = Duration::from_secs(1);

/// Signs of another program that this rank has seen so far.
#[derive(Default)]
pub(crate) struct Occupant {
    /// Attempts in a row that were accepted and got no greeting.
    ungreeted: u32,
    is_known: bool,
}

impl Occupant {
    /// Warns, once, if an attempt of `joiner` that failed with `cause` shows another program.
    pub(crate) fn look(
        &mut self,
        joiner: &Joiner<'_>,
        cause: &io::Error,
        has_secret: bool,
        waited: Duration,
    ) {
        let Joiner { placement, mine, limit, .. } = joiner;
        let rendezvous = &placement.rendezvous;
        // With an agent of the launcher at this port, the other program is expected, and rank 0 is at the next port.
        if self.is_known || rendezvous.has_agent() || !self.is_sign(cause, has_secret, waited) {
            return;
        }
        self.is_known = true;
        if !has_secret && rendezvous.owner().is_none() {
            return;
        }
        let advice = rendezvous.advice(cause);
        let rank = mine.rank;
        tracing::warn!(
            "rank {rank} has not found rank 0 at {rendezvous} so far: {cause}; {advice}; it retries for up to {limit:?}"
        );
    }

    fn is_sign(&mut self, cause: &io::Error, has_secret: bool, waited: Duration) -> bool {
        let is_ungreeted = cause.get_ref().is_some_and(|inner| inner.is::<Ungreeted>());
        self.ungreeted = if is_ungreeted { self.ungreeted + 1 } else { 0 };
        // A malformed greeting.
        let is_other_protocol = cause.kind() == io::ErrorKind::InvalidData;
        is_other_protocol || self.ungreeted == UNGREETED || (!has_secret && waited > SECRETLESS)
    }
}

/// Cause of an attempt that was accepted and got no greeting.
#[derive(Debug)]
enum Ungreeted {
    Silent,
    HungUp,
}

impl fmt::Display for Ungreeted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ungreeted::Silent => f.write_str(
                "the program that listens there accepts connections, but does not greet as rank 0 does",
            ),
            Ungreeted::HungUp => f.write_str("the program that listens there hangs up without a greeting"),
        }
    }
}

impl std::error::Error for Ungreeted {}

/// Adds the meaning of a missing greeting to the error of a handshake.
pub(crate) fn describe_missing_greeting(cause: io::Error) -> io::Error {
    let what = match cause.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ungreeted::Silent,
        io::ErrorKind::UnexpectedEof => Ungreeted::HungUp,
        _ => return cause,
    };
    io::Error::new(cause.kind(), what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::handshake::message::malformed;

    #[test]
    fn a_busy_or_late_rank_0_is_no_sign_and_another_protocol_is() {
        let hung_up = || describe_missing_greeting(io::ErrorKind::UnexpectedEof.into());
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let soon = Duration::from_millis(10);
        let mut seen = Occupant::default();
        for cause in [hung_up(), hung_up(), refused, hung_up(), hung_up()] {
            assert!(!seen.is_sign(&cause, true, SECRETLESS * 9), "{cause}");
        }
        assert!(seen.is_sign(&hung_up(), true, soon));
        assert!(Occupant::default().is_sign(&malformed(), true, soon));
        let absent = io::Error::from(io::ErrorKind::NotFound);
        assert!(!Occupant::default().is_sign(&absent, false, soon));
        assert!(Occupant::default().is_sign(&absent, false, SECRETLESS * 2));
    }
}
