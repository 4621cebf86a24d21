//! The record of rank 0 for the ranks that have joined.

use super::broadcast::send_to_all;
use super::join_messages::{Hello, LeaderMessage, MemberMessage};
use super::peer_info::{JoinRequest, PeerInfo, PeerTable, TransportLimits};
use super::rendezvous_leader::JoinFailure;
use super::rendezvous_member::{ControlStreams, DIED};
use crate::bootstrap::exhausted;
use crate::bootstrap::handshake::acceptor::Acceptor;
use crate::bootstrap::handshake::message::MessageReader;
use crate::bootstrap::handshake::pending::Authenticated;
use crate::bootstrap::handshake::poller::Poller;
use crate::bootstrap::handshake::secret::Secret;
use crate::bootstrap::handshake::{Build, JobKey};
use crate::bootstrap::sockets::stream::{Listener, RankStream};
use crate::error::{Peer, Result};
use crate::system::limits;
use crate::waiting::stopwatch::Stopwatch;
use std::collections::HashSet;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Time, after the latest of them, for which rank 0 notifies ranks that connect late of its failure.
const LINGER: Duration = Duration::from_millis(500);
/// Longest request to join, in bytes.
const JOIN_BYTES: usize = 8 << 10;

/// Rank that has proved the secret. The end of its connection is its own end.
struct RegisteredPeer {
    /// Identity of the rank.
    peer: Peer,
    /// Connection to the rank.
    stream: RankStream,
    /// Bytes received that are not yet a whole message.
    partial: Vec<u8>,
    /// Fields of the rank, once it has sent its request.
    info: Option<PeerInfo>,
}

impl RegisteredPeer {
    /// Reads what has arrived. Returns the rank's message once it is complete.
    fn receive(&mut self) -> io::Result<Option<MemberMessage>> {
        let mut piece = [0; 1024];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.partial.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if let Some(mut message) = MessageReader::split(&mut self.partial, JOIN_BYTES)? {
                return MemberMessage::read(&mut message).map(Some);
            }
        }
    }
}

/// Record of the TCP reachability of the ranks.
struct Reachability<'a> {
    /// Limits of the transport.
    limits: TransportLimits<'a>,
    /// Networks of all ranks, by their system names.
    networks: HashSet<String>,
    /// First rank that accepts connections at loopback addresses only, and those addresses.
    loopback: Option<(Peer, String)>,
}

impl Reachability<'_> {
    /// Adds a rank.
    fn add(&mut self, request: &JoinRequest) {
        self.networks.insert(request.network.clone());
        let loopback = (self.limits.loopback_only)(&request.info.announcement);
        if let (None, Some(at)) = (&self.loopback, loopback) {
            self.loopback = Some((request.info.peer(), at));
        }
    }

    /// Refuses a job with several networks if a rank accepts connections at loopback addresses only.
    fn check(&self) -> Result<(), JoinFailure> {
        match &self.loopback {
            Some((peer, at)) if self.networks.len() > 1 => Err(JoinFailure::Refused(
                format!(
                    "{peer} cannot join: it accepts connections at {at} only, which ranks of other hosts cannot reach"
                ),
                "there, set HEXAGRAM_INTERFACE to an interface that they can reach, or unset it".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

/// Record of the ranks that have joined.
pub(crate) struct JoinedRanks<'a> {
    /// Rank 0's own request.
    mine: JoinRequest,
    /// Registered ranks by rank, `None` for rank 0.
    peers: Vec<Option<RegisteredPeer>>,
    /// Readiness of the registered connections, each by its rank.
    poller: Poller,
    /// Number of ranks whose request has been accepted, including rank 0.
    complete: usize,
    /// Record of where the ranks can be reached.
    reach: Reachability<'a>,
    /// Connections of ranks that were refused.
    refused: Vec<RankStream>,
}

impl<'a> JoinedRanks<'a> {
    /// Creates the record of a job in which only rank 0 has joined.
    pub(crate) fn new(mine: JoinRequest, limits: TransportLimits<'a>) -> Result<Self> {
        let poller = Poller::new();
        let poller = poller.map_err(|cause| limits::no_descriptor("watch joining ranks", cause))?;
        let peers = (0..mine.settings.size).map(|_| None).collect();
        let mut reach = Reachability { limits, networks: HashSet::new(), loopback: None };
        reach.add(&mine);
        Ok(JoinedRanks { mine, peers, poller, complete: 1, reach, refused: Vec::new() })
    }

    /// Returns the number of ranks of the job.
    fn size(&self) -> usize {
        self.peers.len()
    }

    /// Returns true once all ranks have joined.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete == self.size()
    }

    /// Refuses a job for which this process may not open enough files.
    pub(crate) fn check_open_files(&self) -> Result<(), JoinFailure> {
        let peers = self.size() - 1;
        if limits::has_too_few_open_files_for(peers) { Err(self.too_few_files()) } else { Ok(()) }
    }

    /// Registers the `connections` that have just proved the secret, and reads the requests that have arrived.
    pub(crate) fn serve(&mut self, connections: Vec<Authenticated<RankStream>>) -> Result<(), JoinFailure> {
        let mut connections = connections.into_iter();
        let mut outcome = connections.try_for_each(|connection| self.admit(connection));
        self.refused.extend(connections.map(|rejected| rejected.connection));
        for rank in self.poller.ready() {
            outcome = outcome.and_then(|()| self.receive(rank as usize));
        }
        outcome
    }

    /// Registers a rank. One that cannot join ends the rendezvous for all.
    fn admit(&mut self, authenticated: Authenticated<RankStream>) -> Result<(), JoinFailure> {
        let Authenticated { connection: stream, mut message, build } = authenticated;
        let hello = Hello::read(&mut message);
        let who = match &hello {
            Ok(Hello::Rank(peer, _)) => peer.to_string(),
            // The message of a different build may have a different encoding.
            _ => "a rank".to_owned(),
        };
        let mismatch = match &hello {
            _ if build != Build::MINE => {
                let reason = format!("it runs {build}, rank 0 runs {}", Build::MINE);
                Some(JoinFailure::other_build(&who, &reason))
            }
            Ok(Hello::Rank(peer, size)) => {
                self.mismatch(peer, *size).map(|reason| JoinFailure::mismatch(&who, &reason))
            }
            Ok(Hello::Ended(..)) => None,
            Err(error) => Some(JoinFailure::other_build(&who, &error.to_string())),
        };
        match (hello, mismatch) {
            (Ok(Hello::Rank(peer, _)), None) => match self.registered_as(peer.rank) {
                None => self.register(peer, stream),
                Some(other) => {
                    self.refused.push(stream);
                    Err(JoinFailure::taken(&peer.to_string(), peer.rank, &other))
                }
            },
            (Ok(Hello::Ended(culprit, cause)), None) => Err(JoinFailure::Failed(culprit, cause)),
            (_, mismatch) => {
                self.refused.push(stream);
                mismatch.map_or(Ok(()), Err)
            }
        }
    }

    /// Returns the reason why a rank that was started for `size` ranks does not match, if any.
    fn mismatch(&self, peer: &Peer, size: usize) -> Option<String> {
        if size != self.size() {
            return Some(format!("it was started for {size} ranks, rank 0 for {}", self.size()));
        }
        if peer.rank >= size {
            return Some(format!("rank {} does not exist in a world of {size}", peer.rank));
        }
        None
    }

    /// Returns the process that is registered as `rank` already.
    fn registered_as(&self, rank: usize) -> Option<Peer> {
        if rank == 0 {
            return Some(self.mine.info.peer());
        }
        self.peers[rank].as_ref().map(|registered| registered.peer.clone())
    }

    /// Adds a rank, and confirms the registration to it.
    fn register(&mut self, peer: Peer, mut stream: RankStream) -> Result<(), JoinFailure> {
        let rank = peer.rank;
        let welcome = LeaderMessage::registered(&self.mine.info.peer()).send(&mut stream);
        let watched = welcome.and_then(|()| self.poller.watch(&stream, rank as u64));
        match watched {
            Ok(()) => {
                self.peers[rank] = Some(RegisteredPeer { peer, stream, partial: Vec::new(), info: None });
                Ok(())
            }
            Err(error) if exhausted(&error) => Err(self.too_few_files()),
            Err(_) => Err(JoinFailure::Failed(peer, DIED.to_owned())),
        }
    }

    /// Reads the request of a registered rank, and checks it.
    fn receive(&mut self, rank: usize) -> Result<(), JoinFailure> {
        let Some(Some(registered)) = self.peers.get_mut(rank) else { return Ok(()) };
        let peer = registered.peer.clone();
        let request = match registered.receive() {
            Ok(Some(MemberMessage::Join(request))) => request,
            Ok(Some(MemberMessage::GiveUp(cause))) => {
                return Err(JoinFailure::Failed(peer, cause));
            }
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(JoinFailure::other_build(&peer.to_string(), &error.to_string()));
            }
            Err(_) => return Err(JoinFailure::Failed(peer, DIED.to_owned())),
        };
        let claims_another = request.info.rank != rank || registered.info.is_some();
        let another = claims_another.then(|| format!("it says that it is rank {}, too", request.info.rank));
        let must_share_memory = self.reach.limits.must_share_memory;
        if let Some(reason) = another.or_else(|| self.mine.objection(&request, must_share_memory)) {
            return Err(JoinFailure::mismatch(&peer.to_string(), &reason));
        }
        self.reach.add(&request);
        registered.info = Some(request.info);
        self.complete += 1;
        if self.is_complete() { self.reach.check() } else { Ok(()) }
    }

    /// Returns true if `rank` has not been registered.
    fn is_absent(&self, rank: usize) -> bool {
        rank > 0 && self.peers.get(rank).is_some_and(Option::is_none)
    }

    /// Creates the refusal of a job for which this process may not open enough files.
    fn too_few_files(&self) -> JoinFailure {
        let what = limits::open_files_for(&self.mine.info.peer().to_string(), self.size() - 1);
        JoinFailure::Refused(what, limits::MORE_OPEN_FILES.to_owned())
    }

    /// Returns the ranks that have not joined.
    fn absent(&self) -> impl Iterator<Item = usize> {
        let absent = |peer: &Option<RegisteredPeer>| peer.as_ref().is_none_or(|peer| peer.info.is_none());
        self.peers.iter().enumerate().skip(1).filter(move |(_, peer)| absent(peer)).map(|(rank, _)| rank)
    }

    /// Creates the refusal of a job in which ranks are missing after `limit`.
    pub(crate) fn incomplete(
        &self,
        limit: Duration,
        acceptor: &Acceptor<Listener>,
        secret: &Secret,
    ) -> JoinFailure {
        if acceptor.short_since().is_some() {
            return self.too_few_files();
        }
        let missing: Vec<String> = self.absent().map(|rank| rank.to_string()).collect();
        let plural = if missing.len() == 1 { "rank" } else { "ranks" };
        let missing = missing.join(", ");
        let size = self.size();
        let denied = acceptor
            .denied()
            .map_or_else(String::new, |reason| format!("; a connection was rejected: {reason}"));
        let what = format!("{plural} {missing} of {size} did not join within {limit:?}{denied}");
        let remedy = "check that these processes have started, and can reach the address of rank 0";
        let loopback = acceptor.listener().loopback_only().map_or_else(String::new, |at| {
            format!("; rank 0 listens at {at}, which ranks of other hosts cannot reach")
        });
        JoinFailure::Refused(what, format!("{remedy}{loopback}{}", secret.hint()))
    }

    /// Notifies every rank that has connected of the failure, and those that connect until none has for [`LINGER`].
    pub(crate) fn give_up(&mut self, acceptor: &mut Acceptor<Listener>, failure: &JoinFailure) {
        let answer = failure.message().whole();
        // Rank 0 has been notified, and a rank that ended before its registration will not connect.
        let gone = matches!(failure, JoinFailure::Failed(culprit, _) if self.is_absent(culprit.rank));
        let registered = self.peers.iter_mut().flatten().map(|peer| &mut peer.stream);
        let mut informed = 1 + usize::from(gone) + send_to_all(registered.chain(&mut self.refused), &answer);
        let mut waited = Stopwatch::with_gap(LINGER);
        while informed < self.size() {
            let left = LINGER.saturating_sub(waited.elapsed());
            if left.is_zero() {
                break;
            }
            let mut late = acceptor.wait(Some(left), &[]);
            if !late.is_empty() {
                waited = Stopwatch::with_gap(LINGER);
            }
            // They are closed immediately: there may be no descriptors for more of them.
            informed += send_to_all(late.iter_mut().map(|caller| &mut caller.connection), &answer);
        }
    }

    /// Sends the table to all ranks. Returns it, with the connections for `control`.
    pub(crate) fn announce(self, job: &[u8; 16], key: JobKey) -> (PeerTable, ControlStreams) {
        let mut infos = vec![self.mine.info];
        let mut streams = vec![None];
        for peer in self.peers.into_iter().skip(1) {
            let (info, stream) = peer.map(|peer| (peer.info, peer.stream)).unzip();
            infos.extend(info.flatten());
            streams.push(stream);
        }
        // `control` reports a rank that has died meanwhile.
        send_to_all(streams.iter_mut().flatten(), &LeaderMessage::peers(&infos, job).whole());
        (PeerTable { key, infos }, ControlStreams::Leader(streams))
    }
}

impl AsFd for JoinedRanks<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
