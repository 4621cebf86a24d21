//! Primitives in which ranks do not wait for each other's steps: windows, pair exchanges, servers with their clocks,
//! averages in the background.
//!
//! All but the last belong to a service, a thread of this rank that answers the others. All ranks close it, at the
//! latest when they leave the world, and everything created from it ends with it.

mod background;
mod clock;
mod closable_owner;
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
