//! The steps of a transport at start-up: prepare, connect once the peers are known, and open endpoints.
//!
//! A world forms in three steps, with the transport:
//!
//! 1. [`Backend::prepare`], before the peers are known: listen, reserve, register.
//! 2. [`Prepared::announcement`]: a few bytes that every other rank receives in the rendezvous. Only processes that
//!    have proved the secret of the job take part in it.
//! 3. [`Prepared::connect`] with the [`Membership`], which has the announcements of all ranks; its [`Fabric`] then
//!    opens an endpoint ([`Transport`]) for each channel.
//!
//! `kind` has the names of transports, and `registry` the transport of each name, built in or added by a program.

mod kind;
mod membership;
mod registry;

pub use kind::TransportKind;
pub use membership::Membership;
pub use registry::register;
pub(crate) use registry::registered;

use super::{Traffic, Transport};
use crate::backends::socket::Tls;
use crate::bootstrap::hosts::ProbeResult;
use crate::bootstrap::{Listener, Placement};
use crate::control::health::Health;
use crate::error::Result;
use crate::world::JoinOptions;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

/// A transport for start-up; [`register`] names it.
///
/// ```
/// use hexagram_physical::transport::{Backend, Prepared, Site, register};
/// use hexagram_physical::{Error, JoinOptions, Result};
///
/// struct Card;
/// impl Backend for Card {
///     fn prepare(&self, site: &Site<'_>) -> Result<Box<dyn Prepared>> {
///         // A real one returns a `Prepared` with the address of its network card.
///         let rank = site.placement().rank;
///         Err(Error::setup(format!("rank {rank} has no such card"), "choose another transport"))
///     }
/// }
/// let options = JoinOptions { transport: register("card", Card)?, ..JoinOptions::default() };
/// assert_eq!(options.transport.to_string(), "card");
/// # Ok::<(), Error>(())
/// ```
pub trait Backend: Send + Sync {
    /// Opens the resources by which peers will reach this rank, before they are known.
    ///
    /// # Errors
    /// Any error; the other ranks are notified.
    fn prepare(&self, site: &Site<'_>) -> Result<Box<dyn Prepared>>;

    /// Returns the place of this rank in the job, if the transport knows it without the variables of a launcher (as
    /// MPI does). Called on all ranks before anything else.
    ///
    /// # Errors
    /// Any, before the rendezvous.
    fn introduce(&self, _options: &JoinOptions) -> Result<Option<Introduction>> {
        Ok(None)
    }

    /// Returns how the transport uses memory that ranks of one host share.
    fn sharing(&self) -> Sharing {
        Sharing::None
    }

    /// Returns the addresses in an announcement, for people, if only ranks on the same network can reach them all.
    fn loopback_only(&self, _announcement: &[u8]) -> Option<String> {
        None
    }
}

/// Use that a transport makes of memory that ranks of one host share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Not at all.
    None,
    /// Between those ranks that can; the others are connected otherwise. Ranks find out by [`Fabric::probe_memory`].
    WherePossible,
    /// Between all ranks, which must be on one host. Ranks test it with [`Fabric::probe_memory`].
    Required,
}

/// Information with which a transport prepares: the place of this rank and its options.
pub struct Site<'a> {
    pub(crate) placement: &'a Placement,
    pub(crate) options: &'a JoinOptions,
    pub(crate) interfaces: &'a [SocketAddr],
    pub(crate) tls: Option<&'a Tls>,
}

impl Site<'_> {
    /// Returns this rank's place in the job.
    pub fn placement(&self) -> &Placement {
        self.placement
    }

    /// Returns the options with which this rank joins.
    pub fn options(&self) -> &JoinOptions {
        self.options
    }

    /// Returns the addresses of this host at which other ranks reach it, with port 0.
    pub fn interfaces(&self) -> &[SocketAddr] {
        self.interfaces
    }
}

/// Place of a rank in the job, from its transport.
pub struct Introduction {
    pub(crate) placement: Placement,
    /// Listener of rank 0, if the transport has announced that place.
    pub(crate) listener: Option<Listener>,
    pub(crate) prepared: Box<dyn Prepared>,
}

impl Introduction {
    /// Creates the introduction of a rank that is already prepared; [`Backend::prepare`] is not called then.
    pub fn new(placement: Placement, prepared: Box<dyn Prepared>) -> Self {
        Introduction { placement, listener: None, prepared }
    }
}

/// A rank that can be reached, before its peers are known.
pub trait Prepared {
    /// Returns the bytes with which peers reach this rank: at most [`ANNOUNCEMENT_BYTES`](super::ANNOUNCEMENT_BYTES),
    /// in a format of the transport. Peers run the same build of hexagram, but the bytes come from another process:
    /// do not trust lengths in them.
    fn announcement(&self) -> Vec<u8>;

    /// Connects this rank with its peers, whose announcements are known now.
    ///
    /// # Errors
    /// Any error; the other ranks are notified.
    fn connect(self: Box<Self>, member: Arc<Membership>) -> Result<Arc<dyn Fabric>>;
}

/// Connections of a rank by one transport, which open an endpoint for each channel.
pub trait Fabric: Send + Sync {
    /// Connects an endpoint with those that the other ranks of `ranks`, which ascend, open for the same channel. This
    /// rank is among them. The endpoint numbers ranks as the world does.
    ///
    /// # Errors
    /// Any, if a peer does not come before [`Membership::join_deadline`], or fails.
    fn open(&self, channel: u16, ranks: &[usize]) -> Result<Rc<dyn Transport>>;

    /// Returns the known state of the other ranks.
    fn health(&self) -> &Arc<Health>;

    /// Returns the counts to which all endpoints add.
    fn traffic(&self) -> &Arc<Traffic>;

    /// Tries to share memory with `peer`. Called after [`Prepared::connect`] unless [`sharing`](Backend::sharing) is
    /// [`Sharing::None`], for lower ranks that claim to be on this host.
    fn probe_memory(&self, _peer: usize) -> ProbeResult {
        ProbeResult::Unreachable("this transport shares no memory".to_owned())
    }

    /// Announces that this rank has finished. If ranks are processes, the control connection has already done so.
    fn leave(&self) {}
}
