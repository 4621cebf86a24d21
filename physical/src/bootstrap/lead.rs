//! Rank 0's side of the rendezvous. Open this file to see who is waited for, and what ends the rendezvous for all.
//!
//! Nobody is waited for alone: rank 0 hears whoever speaks, those in the acceptor who have yet to prove themselves as well as
//! those who have a peer, and writes nothing that could keep it from the others.

use super::acceptor::Acceptor;
use super::deadline;
use super::exhausted;
use super::handshake::{Build, Key, random};
use super::join::{ANSWER_TIMEOUT, ControlStreams, DIED, Hello, LeaderMessage, MemberMessage, peer_failed};
use super::message::{Incoming, Outgoing};
use super::peer_info::{JoinRequest, PeerInfo, PeerTable};
use super::pending::Authenticated;
use super::poller::Poller;
use super::rendezvous::{Listener, Stream};
use super::secret::Secret;
use crate::error::{Error, Peer, Result};
use crate::limits;
use crate::runtime::{self, PollFd, PollFlags};
use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// How long rank 0, when it has given up, tells those who come why.
const LINGER: Duration = Duration::from_millis(500);
/// Longest info, in bytes.
const JOIN_BYTES: usize = 8 << 10;

/// Leads the rendezvous, as rank 0.
pub(crate) fn lead(
    listener: Listener,
    mine: JoinRequest,
    secret: &Secret,
    limit: Duration,
) -> Result<(PeerTable, ControlStreams)> {
    let deadline = deadline(limit);
    let (bytes, file) = secret.for_rank_0()?;
    let mut acceptor = Acceptor::new(listener, &bytes, mine.settings.size)?;
    // Removed before the listener closes: the address is what makes the file ours.
    let _file = file;
    let mut registry = Registry::new(mine)?;
    // Asked before anybody calls: what strangers take is given back.
    let mut outcome = registry.check_open_files();
    while outcome.is_ok() && !registry.is_complete() {
        let left = deadline.saturating_duration_since(runtime::now());
        // Those who have come are heard before others are missed, however late this process was woken.
        let callers = acceptor.wait(Some(left), &[registry.poller.as_fd()]);
        outcome = registry.serve(callers);
        if outcome.is_ok() && !registry.is_complete() && left.is_zero() {
            outcome = Err(registry.incomplete(limit, &acceptor, secret));
        }
    }
    if let Err(failure) = outcome {
        registry.give_up(&mut acceptor, &failure);
        return Err(failure.into_error());
    }
    let job = random().map_err(Error::no_random)?;
    let key = Key::derive(&bytes, &job).map_err(Error::no_random)?;
    Ok(registry.announce(&job, key))
}

/// Why there will be no world.
enum JoinFailure {
    /// Somebody does not fit, or is missing; and what to do.
    Refused(String, String),
    /// A rank has ended, and how.
    Failed(Peer, String),
}

impl JoinFailure {
    /// What the others are told.
    fn message(&self) -> Outgoing {
        match self {
            JoinFailure::Refused(reason, remedy) => LeaderMessage::refused(reason, remedy),
            JoinFailure::Failed(culprit, cause) => LeaderMessage::failed(culprit, cause),
        }
    }

    fn into_error(self) -> Error {
        match self {
            JoinFailure::Refused(reason, remedy) => Error::setup(reason, remedy),
            JoinFailure::Failed(culprit, cause) => peer_failed(culprit, cause),
        }
    }

    fn mismatch(who: &str, reason: &str) -> Self {
        JoinFailure::refused(who, reason, "start all ranks alike, from the same build")
    }

    fn taken(who: &str, rank: usize, by: &Peer) -> Self {
        let Peer { host, pid, .. } = by;
        let reason = format!("rank {rank} has joined already, from {host} (pid {pid})");
        JoinFailure::refused(who, &reason, "give each rank a number of its own, and each job another port")
    }

    fn refused(who: &str, reason: &str, remedy: &str) -> Self {
        JoinFailure::Refused(format!("{who} cannot join: {reason}"), remedy.to_owned())
    }
}

/// A rank that has proved to belong to the job. The end of its connection is its own.
struct RegisteredPeer {
    peer: Peer,
    stream: Stream,
    /// Read, and not yet a whole message.
    partial: Vec<u8>,
    info: Option<PeerInfo>,
}

impl RegisteredPeer {
    /// Reads what has come; what the rank intends, once that is there as a whole.
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
            if let Some(mut message) = Incoming::split(&mut self.partial, JOIN_BYTES)? {
                return MemberMessage::read(&mut message).map(Some);
            }
        }
    }
}

/// Whether all ranks can reach each other by TCP.
#[derive(Default)]
struct Reachability {
    networks: HashSet<String>,
    /// The first rank that accepts connections only where its own network can reach it, and where that is.
    loopback: Option<(Peer, String)>,
}

impl Reachability {
    fn add(&mut self, request: &JoinRequest) {
        self.networks.insert(request.network.clone());
        if let (None, Some(at)) = (&self.loopback, request.loopback_only()) {
            self.loopback = Some((request.info.peer(), at.to_owned()));
        }
    }

    fn check(&self) -> Result<(), JoinFailure> {
        match &self.loopback {
            Some((peer, at)) if self.networks.len() > 1 => Err(JoinFailure::Refused(
                format!(
                    "{peer} cannot join: it accepts connections at {at} only, where ranks of other hosts cannot reach it"
                ),
                "name an interface that they can reach in HEXAGRAM_INTERFACE there, or unset it".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

/// Who has come.
struct Registry {
    mine: JoinRequest,
    /// By rank; none for rank 0.
    peers: Vec<Option<RegisteredPeer>>,
    /// Watches the peers, each by its rank.
    poller: Poller,
    /// How many ranks have shown their info, rank 0 among them.
    complete: usize,
    reach: Reachability,
    /// Those who have been sent away.
    refused: Vec<Stream>,
}

impl Registry {
    fn new(mine: JoinRequest) -> Result<Self> {
        let poller = Poller::new();
        let poller =
            poller.map_err(|cause| Error::system("watch newcomers", cause, limits::a_file_more()))?;
        let peers = (0..mine.settings.size).map(|_| None).collect();
        let mut reach = Reachability::default();
        reach.add(&mine);
        Ok(Registry { mine, peers, poller, complete: 1, reach, refused: Vec::new() })
    }

    fn size(&self) -> usize {
        self.peers.len()
    }

    fn is_complete(&self) -> bool {
        self.complete == self.size()
    }

    fn check_open_files(&self) -> Result<(), JoinFailure> {
        let peers = self.size() - 1;
        if limits::has_too_few_open_files_for(peers) { Err(self.too_few_files()) } else { Ok(()) }
    }

    /// Serves those who have just proved to belong to the job, and those registered who have something to say.
    fn serve(&mut self, callers: Vec<Authenticated<Stream>>) -> Result<(), JoinFailure> {
        let mut callers = callers.into_iter();
        let mut outcome = callers.try_for_each(|caller| self.admit(caller));
        self.refused.extend(callers.map(|caller| caller.connection));
        for rank in self.poller.ready() {
            outcome = outcome.and_then(|()| self.receive(rank as usize));
        }
        outcome
    }

    /// Takes in somebody who belongs to the job; one who cannot join ends the rendezvous for all.
    fn admit(&mut self, caller: Authenticated<Stream>) -> Result<(), JoinFailure> {
        let Authenticated { connection: stream, mut message, build } = caller;
        let hello = Hello::read(&mut message);
        let mismatch = match &hello {
            _ if build != Build::MINE => Some(format!("it runs {build}, rank 0 runs {}", Build::MINE)),
            Ok(Hello::Rank(peer, size)) => self.mismatch(peer, *size),
            Ok(Hello::Ended(..)) => None,
            Err(error) => Some(error.to_string()),
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
            (hello, reason) => {
                self.refused.push(stream);
                // What another build says may not be readable.
                let who = match hello {
                    Ok(Hello::Rank(peer, _)) => peer.to_string(),
                    _ => "a rank".to_owned(),
                };
                Err(JoinFailure::mismatch(&who, &reason.unwrap_or_default()))
            }
        }
    }

    /// Why there is no peer for `peer`, which was told of `size` ranks.
    fn mismatch(&self, peer: &Peer, size: usize) -> Option<String> {
        if size != self.size() {
            return Some(format!("it was told of {size} ranks, rank 0 of {}", self.size()));
        }
        if peer.rank >= size {
            return Some(format!("there is no rank {} in a world of {size}", peer.rank));
        }
        None
    }

    /// Who has joined as `rank` already.
    fn registered_as(&self, rank: usize) -> Option<Peer> {
        if rank == 0 {
            return Some(self.mine.info.peer());
        }
        self.peers[rank].as_ref().map(|peer| peer.peer.clone())
    }

    fn register(&mut self, peer: Peer, mut stream: Stream) -> Result<(), JoinFailure> {
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

    /// Hears what a registered rank has to say.
    fn receive(&mut self, rank: usize) -> Result<(), JoinFailure> {
        let Some(Some(peer)) = self.peers.get_mut(rank) else { return Ok(()) };
        let request = match peer.receive() {
            Ok(Some(MemberMessage::Join(request))) => request,
            Ok(Some(MemberMessage::GiveUp(cause))) => {
                return Err(JoinFailure::Failed(peer.peer.clone(), cause));
            }
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(JoinFailure::mismatch(&peer.peer.to_string(), &error.to_string()));
            }
            Err(_) => return Err(JoinFailure::Failed(peer.peer.clone(), DIED.to_owned())),
        };
        let claims_another = request.info.rank != rank || peer.info.is_some();
        let another = claims_another.then(|| format!("it says that it is rank {}, too", request.info.rank));
        if let Some(reason) = another.or_else(|| self.mine.objection(&request)) {
            return Err(JoinFailure::mismatch(&peer.peer.to_string(), &reason));
        }
        self.reach.add(&request);
        peer.info = Some(request.info);
        self.complete += 1;
        if self.is_complete() { self.reach.check() } else { Ok(()) }
    }

    fn is_absent(&self, rank: usize) -> bool {
        rank > 0 && self.peers.get(rank).is_some_and(Option::is_none)
    }

    fn too_few_files(&self) -> JoinFailure {
        let what = limits::open_files_for(&self.mine.info.peer().to_string(), self.size() - 1);
        JoinFailure::Refused(what, limits::MORE_OPEN_FILES.to_owned())
    }

    /// The ranks that have not come.
    fn absent(&self) -> impl Iterator<Item = usize> {
        let absent = |peer: &Option<RegisteredPeer>| peer.as_ref().is_none_or(|peer| peer.info.is_none());
        self.peers.iter().enumerate().skip(1).filter(move |(_, peer)| absent(peer)).map(|(rank, _)| rank)
    }

    /// Why not everyone has come in time.
    fn incomplete(&self, limit: Duration, acceptor: &Acceptor<Listener>, secret: &Secret) -> JoinFailure {
        if acceptor.short_since().is_some() {
            return self.too_few_files();
        }
        let missing: Vec<String> = self.absent().map(|rank| rank.to_string()).collect();
        let plural = if missing.len() == 1 { "rank" } else { "ranks" };
        let missing = missing.join(", ");
        let size = self.size();
        let denied = acceptor
            .denied()
            .map_or_else(String::new, |reason| format!("; a connection was turned away: {reason}"));
        let what = format!("{plural} {missing} of {size} did not join within {limit:?}{denied}");
        let remedy = "see whether these processes started and can reach rank 0's address";
        let loopback = acceptor.listener().loopback_only().map_or_else(String::new, |at| {
            format!("; rank 0 listens at {at}, where ranks of other hosts cannot reach it")
        });
        JoinFailure::Refused(what, format!("{remedy}{loopback}{}", secret.hint()))
    }

    /// Tells everyone who has come, or comes in a moment, that there will be no world.
    fn give_up(&mut self, acceptor: &mut Acceptor<Listener>, failure: &JoinFailure) {
        let answer = failure.message().whole();
        // Rank 0 knows, and who has ended without a peer does not come any more.
        let gone = matches!(failure, JoinFailure::Failed(culprit, _) if self.is_absent(culprit.rank));
        let registered = self.peers.iter_mut().flatten().map(|peer| &mut peer.stream);
        let mut told = 1 + usize::from(gone) + send_to_all(registered.chain(&mut self.refused), &answer);
        let until = runtime::now() + LINGER;
        while told < self.size() && runtime::now() < until {
            let left = until.saturating_duration_since(runtime::now());
            let mut late = acceptor.wait(Some(left), &[]);
            // They are closed at once: there may be no descriptors for more of them.
            told += send_to_all(late.iter_mut().map(|caller| &mut caller.connection), &answer);
        }
    }

    fn announce(self, job: &[u8; 16], key: Key) -> (PeerTable, ControlStreams) {
        let mut infos = vec![self.mine.info];
        let mut streams = vec![None];
        for peer in self.peers.into_iter().skip(1) {
            let (info, stream) = peer.map(|peer| (peer.info, peer.stream)).unzip();
            infos.extend(info.flatten());
            streams.push(stream);
        }
        // Whoever has died meanwhile is found by whoever watches the control connections, and named to all.
        send_to_all(streams.iter_mut().flatten(), &LeaderMessage::peers(&infos, job).whole());
        (PeerTable { key, infos }, ControlStreams::Leader(streams))
    }
}

/// Writes `message` to all at once; returns how many they are. Whoever takes none of it for so long that it has to be
/// stopped is cut off, as it could not understand the rest.
fn send_to_all<'a>(streams: impl Iterator<Item = &'a mut Stream>, message: &[u8]) -> usize {
    let mut unsaid: Vec<(&mut Stream, usize)> = streams.map(|stream| (stream, 0)).collect();
    let count = unsaid.len();
    let mut until = runtime::now() + ANSWER_TIMEOUT;
    loop {
        let mut has_moved = false;
        unsaid.retain_mut(|(stream, said)| {
            let before = *said;
            let is_unsaid = send_some(stream, message, said);
            has_moved |= *said > before;
            is_unsaid
        });
        if has_moved {
            until = runtime::now() + ANSWER_TIMEOUT;
        }
        let left = until.saturating_duration_since(runtime::now());
        if unsaid.is_empty() || left.is_zero() {
            break;
        }
        let mut sources: Vec<_> =
            unsaid.iter().map(|(stream, _)| PollFd::new(&**stream, PollFlags::OUT)).collect();
        let _ = runtime::poll(&mut sources, Some(left));
    }
    for (stream, _) in unsaid {
        let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
    }
    count
}

/// Writes what can be written of `message`, of which so much is `said`; whether there is more to say.
fn send_some(stream: &mut Stream, message: &[u8], said: &mut usize) -> bool {
    while *said < message.len() {
        match stream.write(&message[*said..]) {
            Ok(written) if written > 0 => *said += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            // Whoever is gone needs no more words.
            _ => return false,
        }
    }
    false
}
