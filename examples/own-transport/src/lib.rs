//! `loopback`: a transport between the threads of one process, in a separate crate.
//!
//! Every rank has an inbox, and announces its number. A message is copied once, into the receiver's inbox, so a send
//! completes immediately. The receiver matches it with a receive, and delivers it there. Use it to begin your own
//! transport.

mod endpoint;
mod inbox;
#[cfg(test)]
mod tests;

use endpoint::Endpoint;
use hexagram::physical::health::Health;
use hexagram::physical::transport::{
    Backend, Fabric, Membership, Prepared, Site, Traffic, Transport, TransportKind, register,
};
use hexagram::{Error, Result};
use inbox::{Inbox, Inboxes};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// Returns the transport, which is registered by the first call.
///
/// # Errors
/// [`Error::Usage`] if a different transport has the name.
pub fn loopback() -> Result<TransportKind> {
    static KIND: OnceLock<Result<TransportKind>> = OnceLock::new();
    KIND.get_or_init(|| register("loopback", Loopback)).clone()
}

/// The transport as the bootstrap uses it.
struct Loopback;

impl Backend for Loopback {
    fn prepare(&self, _site: &Site<'_>) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(Waiting(Inboxes::open())))
    }
}

/// A rank with its inboxes, before it has its peers.
struct Waiting(Arc<Inboxes>);

impl Prepared for Waiting {
    /// Returns the process and the number of the inboxes in it.
    fn announcement(&self) -> Vec<u8> {
        [std::process::id().to_le_bytes(), self.0.number().to_le_bytes()].concat()
    }

    fn connect(self: Box<Self>, member: Arc<Membership>) -> Result<Arc<dyn Fabric>> {
        let find = |rank| {
            find(member.announcement(rank)).ok_or_else(|| {
                let what = format!("{} is not in this process", member.health().peers()[rank]);
                Error::setup(what, "start all ranks of the loopback transport as threads of one process")
            })
        };
        let ranks = (0..member.size()).map(find).collect::<Result<_>>()?;
        Ok(Arc::new(Connected { own: self.0, ranks, member }))
    }
}

/// Finds the inboxes that a rank has announced. The bytes come from another rank, so they are checked. If a rank of
/// this process has ended already, returns new inboxes without a reader: its health reports the failure.
fn find(announcement: &[u8]) -> Option<Arc<Inboxes>> {
    let (process, number) = announcement.split_first_chunk::<4>()?;
    let number = u32::from_le_bytes(number.try_into().ok()?);
    let is_here = u32::from_le_bytes(*process) == std::process::id();
    is_here.then(|| Inboxes::find(number).unwrap_or_else(Inboxes::open))
}

/// A rank with its peers.
struct Connected {
    /// This rank's inboxes; peers find them while it exists.
    own: Arc<Inboxes>,
    /// Inboxes of all ranks, by rank.
    ranks: Vec<Arc<Inboxes>>,
    member: Arc<Membership>,
}

impl Fabric for Connected {
    fn open(&self, channel: u16, _ranks: &[usize]) -> Result<Rc<dyn Transport>> {
        let inbox: Arc<Inbox> = self.own.channel(channel);
        let peers = self.ranks.iter().map(|rank| rank.channel(channel)).collect();
        Ok(Rc::new(Endpoint::new(&self.member, loopback()?, inbox, peers)))
    }

    fn health(&self) -> &Arc<Health> {
        self.member.health()
    }

    fn traffic(&self) -> &Arc<Traffic> {
        self.member.traffic()
    }
}
