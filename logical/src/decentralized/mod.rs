//! Decentralized, synchronous: ranks mix with neighbours, and nobody knows the mean of all. Open this file to find the
//! formula of each primitive.
//!
//! | | formula | for |
//! |---|---|---|
//! | [`gossip`](crate::Communicator::gossip) | `xᵢ ← Σⱼ wᵢⱼ xⱼ` | D-PSGD and everything like it |
//! | [`push_sum`](crate::Communicator::push_sum) | the same of `xᵢ` and of a weight, `zᵢ = xᵢ / weightᵢ` | directed graphs (SGP) |
//! | [`gossip_encoded`](crate::Communicator::gossip_encoded) | that of a [`Feedback`](crate::encoding::Feedback) | low precision |
//!
//! Who mixes with whom, and with which weights wᵢⱼ, says a [`Schedule`]: a [`Topology`], or any [`Mixing`] matrix, or one
//! for every step. Senders and receivers of a step are read from one matrix, so that they cannot miss each other.

mod encoded;
mod gossip;
mod mixing;
mod neighbours;
mod push_sum;
mod schedule;
mod topology;

pub use encoded::{Difference, GossipOptions};
pub use mixing::{Edge, Mixing};
pub use schedule::Schedule;
pub use topology::Topology;
