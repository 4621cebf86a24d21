//! Collectives that a backend carries out by itself, because it knows better than a sequence of messages: shared memory
//! reads the peers' buffers directly, MPI has algorithms of its own. Open this to give a backend such a collective.
//!
//! What is to be done stands in the label's fingerprint; the views are the buffers of this rank:
//!
//! | operation | input | output |
//! |---|---|---|
//! | barrier | – | empty |
//! | all-reduce, broadcast | – (in place) | the whole buffer |
//! | all-gather | this rank's block | all blocks |
//! | reduce-scatter | all blocks | this rank's block |
//!
//! [`ReduceOp::Mean`](crate::ReduceOp::Mean) is done here completely: the sum divided by the number of ranks, of 16-bit
//! floats the sum of contributions that were divided before.

use crate::memory::{ReadView, WriteView};
use crate::transport::{Label, Ticket};

/// A backend's own collectives over all ranks of its endpoint.
pub trait Collectives {
    /// Whether the backend carries this operation out itself. The answer depends only on what is equal on all ranks
    /// when all call alike; where they do not, the operation fails as a mismatch.
    fn offers(&self, label: &Label, input: Option<&ReadView>, output: &WriteView) -> bool;

    /// Starts an operation that was offered. Poll and cancel its ticket as any other; the peer and the bytes of its
    /// [`Got`](crate::transport::Got) are this rank and the output's size.
    fn post(&self, label: Label, input: Option<ReadView>, output: WriteView) -> Ticket;
}
