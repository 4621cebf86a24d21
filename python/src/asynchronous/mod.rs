//! Primitives in which no rank waits for another's step: windows, pair exchanges, servers with their clocks, averages in
//! the background.
//!
//! All but the last are made of a service, a thread of this rank that answers the others. It is closed by all ranks, at
//! the latest as they leave the world, and everything that was made of it ends with it.

mod background;
mod clock;
mod home;
mod pair;
mod server;
mod service;
mod window;

pub(crate) use background::{Average, Background};
pub(crate) use clock::Clock;
pub(crate) use pair::PairExchange;
pub(crate) use server::Server;
pub(crate) use service::Service;
pub(crate) use window::Window;
