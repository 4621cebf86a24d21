//! The exchange of registered memory between the ranks of an endpoint, over the sockets that connected them.

use super::descriptors::{receive_whole, send};
use super::region::{REGION_HEADER, Region, check_header, region_header};
use crate::bootstrap::sockets::dial::Dial;
use crate::control::health::Health;
use crate::error::{Error, Result};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Sockets of one endpoint to its peers, over which registered memory is exchanged.
pub(crate) struct RegistrationSockets {
    pub(crate) channel: u16,
    /// Sockets by rank; none to this rank itself.
    pub(crate) streams: Vec<Option<UnixStream>>,
    pub(crate) health: Arc<Health>,
}

impl RegistrationSockets {
    /// Sends every peer this rank's region of a registration, and maps theirs. Returns `None`, on all ranks, if any of
    /// them has no region.
    pub(crate) fn exchange_regions(
        &self,
        index: u32,
        bytes: usize,
        file: Option<&OwnedFd>,
        limit: Duration,
    ) -> Result<Option<Vec<Option<Arc<Region>>>>> {
        let failed = |peer: usize, cause: io::Error| {
            let doing = format!("exchange registered memory with {}", self.health.peers()[peer]);
            Error::system(
                doing,
                cause,
                "register at the same point on all ranks; check that that process is alive",
            )
        };
        let mine = region_header(index, bytes);
        let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        let streams = || self.streams.iter().enumerate().filter_map(|(peer, s)| Some((peer, s.as_ref()?)));
        for (peer, stream) in streams() {
            send(stream, &mine, &files).map_err(|cause| failed(peer, cause))?;
        }
        let mut theirs: Vec<_> = self.streams.iter().map(|_| None).collect();
        let mut all_have_regions = file.is_some();
        for (peer, stream) in streams() {
            let opening = Dial { peer, channel: self.channel, limit, health: &self.health };
            let (words, files) = opening.until(stream, || receive_whole::<REGION_HEADER>(stream))?;
            check_header(mine, words, &self.health.peers()[peer])?;
            all_have_regions &= !files.is_empty();
            if all_have_regions {
                theirs[peer] = Some(Region::map(&files[0], bytes).map_err(|cause| failed(peer, cause))?);
            }
        }
        Ok(all_have_regions.then_some(theirs))
    }
}
