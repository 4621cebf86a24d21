//! Decentralized, synchronous: ranks mix with neighbours, and no rank computes the mean of all.
//!
//! | | formula | use |
//! |---|---|---|
//! | [`gossip`](crate::Communicator::gossip) | `xᵢ ← Σⱼ wᵢⱼ xⱼ` | D-PSGD and similar algorithms |
//! | [`push_sum`](crate::Communicator::push_sum) | the same of `xᵢ` and of a weight, `zᵢ = xᵢ / weightᵢ` | directed graphs (SGP) |
//! | [`gossip_encoded`](crate::Communicator::gossip_encoded) | that of a [`Feedback`](crate::encoding::Feedback): see [`encoded`] | low precision |
//! | [`neighbour_exchange`](crate::Communicator::neighbour_exchange) | a different message to each neighbour | relays over a tree |
//!
//! A [`Schedule`] determines which ranks mix, and with which weights wᵢⱼ: a [`Topology`], or any [`Mixing`] matrix,
//! or one for every step. Senders and receivers of a step use the same matrix, so that they always match.
//!
//! ```
//! use hexagram_logical::TransportKind;
//! use hexagram_logical::decentralized::Topology;
//! use hexagram_logical::testing::spawn;
//!
//! let means = spawn(TransportKind::Thread, 4, |comm| {
//!     let mut mine = [comm.rank() as f32];
//!     for step in 0..2 {
//!         comm.blocking().gossip(&mut mine, &Topology::OnePeerExponential, step)?;
//!     }
//!     Ok(mine)
//! });
//! assert_eq!(means.unwrap(), [[1.5]; 4], "exact after log₂ n steps");
//! ```

pub mod encoded;
mod exchange;
mod gossip;
mod hierarchy;
mod lazy;
mod mixing;
mod neighbours;
mod push_sum;
mod schedule;
mod topology;
mod unequal;

pub use encoded::{Difference, GossipOptions};
pub use lazy::Lazy;
pub use mixing::{Edge, Mixing};
pub use schedule::{Schedule, mixing_at};
pub use topology::{Topology, any_graph, catalogue};
