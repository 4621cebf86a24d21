//! Primitives in which no rank waits for the step of another: windows, pair exchanges, servers, operations in the
//! background.
//!
//! | | operations | use |
//! |---|---|---|
//! | [`Window`] | put, get, accumulate, update | gossip without a common step, push-sum |
//! | [`PairExchange`] | two ranks average | AD-PSGD |
//! | [`Server`] and [`Clock`] | push to and pull from shards, with bounded staleness | parameter servers, SSP |
//! | [`Background`] | any operation, during computation | asynchronous model averages |
//!
//! All but the last use a [`Service`]: start one on all ranks, and close it at the end.

mod activity;
mod background;
mod blocking;
mod clock;
mod links;
mod pair;
mod pending;
mod pool;
mod saved_states;
mod server;
mod service;
mod task;
mod window;

pub use activity::{Activity, Work};
pub use background::{Background, Model, Outcome};
pub use blocking::{
    BlockingBackground, BlockingClock, BlockingPairExchange, BlockingServer, BlockingService, BlockingWindow,
};
pub use clock::Clock;
pub use pair::{Exchanged, PairExchange, PairOptions};
pub use pending::Pending;
pub use server::{Add, Pulled, Push, Server, ServerOptions, SgdUpdate, Update, shard_range};
pub use service::{INLINE_BYTES, REPLY_BYTES, REQUEST_BYTES, Service};
pub use window::Window;
