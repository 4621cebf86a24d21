//! Sockets of a simulated cluster: connections of start-up and heartbeats, for the same code as on real sockets.
//!
//! A rank has one end of a pair of system sockets, and the simulation the other. The data that the rank writes is
//! taken at the end of its turn, travels over the wires like any message, and is written into the pair of the other
//! rank on arrival.

use crate::bootstrap::abstract_address;
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Maximum bytes per read.
const READ_BYTES: usize = 16 << 10;

/// Number of a connection, in the order of calls.
type ConnectionNumber = usize;

/// Side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallSide {
    Caller,
    Listener,
}

/// Part of the data from one side of a connection to the other.
pub(super) struct SocketData {
    connection: ConnectionNumber,
    /// Receiving side.
    to: CallSide,
    said: SocketReply,
}

enum SocketReply {
    Call,
    Accepted,
    Bytes(Box<[u8]>),
    End,
}

impl SocketData {
    /// Returns the bytes that travel.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.said {
            SocketReply::Bytes(bytes) => bytes,
            _ => &[],
        }
    }
}

/// A piece on its way from one rank to another.
pub(super) struct Datagram {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) piece: SocketData,
}

/// One end of a simulated connection.
struct ConnectionEnd {
    rank: usize,
    /// `None` before the connection is accepted, and once it has ended.
    held: Option<UnixStream>,
    /// Bytes that have arrived and that the rank's socket has no room for.
    unread: Vec<u8>,
    /// Set once nothing more arrives.
    has_end: bool,
}

impl ConnectionEnd {
    fn of(rank: usize, held: Option<UnixStream>) -> Self {
        ConnectionEnd { rank, held, unread: Vec::new(), has_end: false }
    }

    /// Passes the arrived data to the rank.
    fn flush(&mut self) {
        let Some(held) = &mut self.held else { return };
        while !self.unread.is_empty() {
            match held.write(&self.unread) {
                Ok(written) if written > 0 => drop(self.unread.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The rank has closed its end.
                _ => self.unread.clear(),
            }
        }
        if self.has_end {
            let _ = held.shutdown(Shutdown::Both);
            self.held = None;
        }
    }

    /// Takes the data that the rank has written; sets `has_closed` if it has closed its end.
    fn take(&mut self, has_closed: &mut bool) -> Vec<u8> {
        let mut written = Vec::new();
        let Some(held) = &mut self.held else { return written };
        let mut bytes = [0; READ_BYTES];
        loop {
            match held.read(&mut bytes) {
                Ok(read) if read > 0 => written.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return written,
                _ => {
                    self.held = None;
                    *has_closed = true;
                    return written;
                }
            }
        }
    }
}

/// Answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    Waiting,
    Accepted,
    Refused,
}

struct SimulatedConnection {
    name: String,
    state: CallState,
    /// The caller's, then the listener's.
    ends: [ConnectionEnd; 2],
}

/// All sockets of a simulated world.
pub(super) struct Sockets {
    /// Number of this world in this process: all worlds share the names of the system.
    world: u64,
    connections: Vec<SimulatedConnection>,
    /// Listening ranks, by the names at which they do.
    listeners: HashMap<String, usize>,
    /// By rank: connections that it is an end of.
    of_rank: Vec<Vec<(ConnectionNumber, CallSide)>>,
}

impl Sockets {
    /// Creates the sockets of `ranks` ranks, initially none.
    pub(super) fn new(ranks: usize) -> Self {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let world = WORLDS.fetch_add(1, Ordering::Relaxed);
        Sockets {
            world,
            connections: Vec::new(),
            listeners: HashMap::new(),
            of_rank: vec![Vec::new(); ranks],
        }
    }

    /// Returns the name of the system for a name of this world.
    fn real_name(&self, name: &str) -> String {
        format!("hexagram-sim-{}-{}-{name}", std::process::id(), self.world)
    }

    /// Listens as a rank.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    pub(super) fn listen(&mut self, rank: usize, name: &str) -> io::Result<UnixListener> {
        let listener = UnixListener::bind_addr(&abstract_address(&self.real_name(name))?)?;
        self.listeners.insert(name.to_owned(), rank);
        Ok(listener)
    }

    /// Calls a listener as a rank. Returns the rank's socket; the call is in `datagrams`.
    ///
    /// # Errors
    /// `ConnectionRefused` if no listener has the name; the errors of socketpair(2).
    pub(super) fn call(
        &mut self,
        rank: usize,
        name: &str,
        datagrams: &mut Vec<Datagram>,
    ) -> io::Result<(ConnectionNumber, UnixStream)> {
        let Some(&listener) = self.listeners.get(name) else {
            return Err(ErrorKind::ConnectionRefused.into());
        };
        let (theirs, held) = UnixStream::pair()?;
        held.set_nonblocking(true)?;
        let number = self.connections.len();
        let ends = [ConnectionEnd::of(rank, Some(held)), ConnectionEnd::of(listener, None)];
        self.connections.push(SimulatedConnection { name: name.to_owned(), state: CallState::Waiting, ends });
        self.of_rank[rank].push((number, CallSide::Caller));
        datagrams.push(self.datagram(number, CallSide::Listener, SocketReply::Call));
        Ok((number, theirs))
    }

    /// Returns the outcome of a call, once there is one.
    pub(super) fn answer(&self, number: ConnectionNumber) -> Option<io::Result<()>> {
        match self.connections[number].state {
            CallState::Waiting => None,
            CallState::Accepted => Some(Ok(())),
            CallState::Refused => Some(Err(ErrorKind::ConnectionRefused.into())),
        }
    }

    fn datagram(&self, connection: ConnectionNumber, to: CallSide, said: SocketReply) -> Datagram {
        let [caller, listener] = &self.connections[connection].ends;
        let (from, to_rank) = match to {
            CallSide::Listener => (caller.rank, listener.rank),
            CallSide::Caller => (listener.rank, caller.rank),
        };
        Datagram { from, to: to_rank, piece: SocketData { connection, to, said } }
    }

    /// Takes the data that a rank has written, at the end of its turn.
    pub(super) fn collect(&mut self, rank: usize) -> Vec<Datagram> {
        let mut datagrams = Vec::new();
        for (number, side) in mem::take(&mut self.of_rank[rank]) {
            let socket = &mut self.connections[number].ends[side as usize];
            socket.flush();
            let mut has_closed = false;
            let bytes = socket.take(&mut has_closed);
            let is_open = socket.held.is_some();
            let to = if side == CallSide::Caller { CallSide::Listener } else { CallSide::Caller };
            if !bytes.is_empty() {
                datagrams.push(self.datagram(number, to, SocketReply::Bytes(bytes.into())));
            }
            if has_closed {
                datagrams.push(self.datagram(number, to, SocketReply::End));
            }
            if is_open {
                self.of_rank[rank].push((number, side));
            }
        }
        datagrams
    }

    /// Ends all connections of a rank that has died; returns the resulting messages of the system to others.
    pub(super) fn kill(&mut self, rank: usize) -> Vec<Datagram> {
        let mut datagrams = self.collect(rank);
        for (number, side) in mem::take(&mut self.of_rank[rank]) {
            let socket = &mut self.connections[number].ends[side as usize];
            socket.unread.clear();
            socket.has_end = true;
            socket.flush();
            let to = if side == CallSide::Caller { CallSide::Listener } else { CallSide::Caller };
            datagrams.push(self.datagram(number, to, SocketReply::End));
        }
        datagrams
    }

    /// Passes arrived data to a rank. Returns the answer of its system, if any.
    pub(super) fn deliver(&mut self, piece: SocketData) -> Option<Datagram> {
        let SocketData { connection, to, said } = piece;
        match said {
            SocketReply::Call => return Some(self.accept(connection)),
            SocketReply::Accepted => self.connections[connection].state = CallState::Accepted,
            SocketReply::Bytes(bytes) => {
                let socket = &mut self.connections[connection].ends[to as usize];
                socket.unread.extend_from_slice(&bytes);
                socket.flush();
            }
            SocketReply::End => {
                let SimulatedConnection { state, ends, .. } = &mut self.connections[connection];
                if *state == CallState::Waiting {
                    *state = CallState::Refused;
                }
                ends[to as usize].has_end = true;
                ends[to as usize].flush();
            }
        }
        None
    }

    /// Connects to the listener of a call. Returns the answer.
    fn accept(&mut self, number: ConnectionNumber) -> Datagram {
        let name = self.real_name(&self.connections[number].name);
        let connect = || -> io::Result<UnixStream> {
            let held = UnixStream::connect_addr(&abstract_address(&name)?)?;
            held.set_nonblocking(true)?;
            Ok(held)
        };
        let Ok(held) = connect() else { return self.datagram(number, CallSide::Caller, SocketReply::End) };
        let socket = &mut self.connections[number].ends[CallSide::Listener as usize];
        socket.held = Some(held);
        let rank = socket.rank;
        self.of_rank[rank].push((number, CallSide::Listener));
        self.datagram(number, CallSide::Caller, SocketReply::Accepted)
    }
}

/// Bounds every later read and write of a socket by `patience`.
///
/// # Errors
/// Those of setsockopt(2).
pub(super) fn bound(stream: &UnixStream, patience: Duration) -> io::Result<()> {
    let patience = Some(patience.max(Duration::from_millis(1)));
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(patience)
}
