//! The connection of this process to its launcher, which keeps the membership. A thread reads it as long as the process runs.

use super::generation::Generation;
use super::messages::{MemberNotice, MemberRequest};
use crate::bootstrap::parent::last_launcher;
use crate::error::{Error, Result};
use crate::runtime;
use crate::system::environment::variable;
use rustix::io::FdFlags;
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Variable with the descriptor of the connection.
pub const MEMBERSHIP: &str = "HEXAGRAM_MEMBERSHIP_FD";
/// Longest time for which the launcher does not read. It reads always, unless it is stopped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// End of the connection without a reason.
const GONE: &str = "the launcher of this process has ended";

/// The connection.
pub(crate) struct MembershipLink {
    /// Half for the requests of any thread.
    writer: Mutex<UnixStream>,
    state: Mutex<LinkState>,
    /// Notified at every change of the state.
    more: Condvar,
}

/// Messages of the launcher so far.
#[derive(Default)]
pub(crate) struct LinkState {
    /// Longest time for which the launcher waits for a process after a change, once it has sent that.
    rejoin_wait: Option<Duration>,
    newest: Option<Arc<Generation>>,
    /// Number of the last request to a store, and its answer.
    request: usize,
    answer: Option<Vec<u8>>,
    /// Reason why no further generation begins.
    end: Option<String>,
}

impl LinkState {
    /// Returns true if the last request has been answered, or never will be.
    pub(super) fn is_answered(&self) -> bool {
        self.end.is_some() || self.answer.is_some()
    }

    fn newest(&self) -> u64 {
        self.newest.as_ref().map_or(0, |generation| generation.number)
    }
}

impl MembershipLink {
    /// Returns the connection of this process, if its launcher keeps a membership. The first call takes the descriptor.
    ///
    /// # Errors
    /// [`Error::Setup`] if the variable names no connection to the launcher; [`Error::System`] if the system has no thread.
    pub(crate) fn of_process() -> Result<Option<Arc<Self>>> {
        static LINK: Mutex<Option<(u32, Arc<MembershipLink>)>> = Mutex::new(None);
        let Some(text) = variable(MEMBERSHIP).filter(|_| !runtime::is_replaced()) else { return Ok(None) };
        let mut link = LINK.lock().unwrap_or_else(PoisonError::into_inner);
        match &*link {
            Some((pid, link)) if *pid == std::process::id() => return Ok(Some(Arc::clone(link))),
            Some(_) => return Err(no_member("belongs to the process from which this one was forked".into())),
            None => {}
        }
        let number = text.parse().map_err(|_| no_member(format!("is {text}, which is not a descriptor")))?;
        let stream = inherit(number).map_err(|cause| no_member(format!("is {number}: {cause}")))?;
        let opened = Self::open(stream)?;
        *link = Some((std::process::id(), Arc::clone(&opened)));
        Ok(Some(opened))
    }

    /// Starts to read the connection.
    fn open(stream: UnixStream) -> Result<Arc<Self>> {
        let reader = stream.try_clone().and_then(|reader| {
            stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
            Ok(reader)
        });
        let reader = reader.map_err(|cause| {
            Error::system("open the connection to the launcher", cause, "allow this process more open files")
        })?;
        let link = Arc::new(MembershipLink {
            writer: Mutex::new(stream),
            state: Mutex::default(),
            more: Condvar::new(),
        });
        let of_thread = Arc::clone(&link);
        runtime::spawn("hexagram-members", move || of_thread.read(reader))?;
        Ok(link)
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads messages until the connection ends.
    fn read(self: &Arc<Self>, mut stream: UnixStream) {
        let mut unread = Vec::new();
        let end = loop {
            let mut piece = [0; 4096];
            match stream.read(&mut piece) {
                Ok(0) => break GONE.to_owned(),
                Ok(bytes) => unread.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => break format!("{GONE}: {error}"),
            }
            if let Err(error) = self.handle_all(&mut unread) {
                break format!("the launcher of this process is a different build: {error}");
            }
        };
        self.finish(end);
    }

    fn handle_all(self: &Arc<Self>, unread: &mut Vec<u8>) -> io::Result<()> {
        while let Some(notice) = MemberNotice::split(unread)? {
            self.handle(notice);
        }
        Ok(())
    }

    /// Handles one message.
    fn handle(self: &Arc<Self>, notice: MemberNotice) {
        match notice {
            MemberNotice::Welcome(wait) => self.state().rejoin_wait = Some(wait),
            MemberNotice::Generation { number, rank, size } => {
                let generation = Generation::new(number, rank, size, Arc::clone(self));
                self.state().newest = Some(Arc::new(generation));
            }
            MemberNotice::Changed { generation, culprit, cause } => {
                let newest = self.state().newest.clone();
                if let Some(ends) = newest.filter(|newest| newest.number == generation) {
                    ends.end(culprit, &cause);
                }
                // A thread between its check of the generation and its wait holds the state.
                drop(self.state());
            }
            MemberNotice::Value { request, value } => {
                let mut state = self.state();
                // The caller of an older request waits no more.
                if request == state.request {
                    state.answer = Some(value);
                }
            }
            MemberNotice::Ended(cause) => return self.finish(cause),
        }
        self.more.notify_all();
    }

    /// Records that no further generation begins, and ends the current one.
    fn finish(&self, cause: String) {
        let newest = {
            let mut state = self.state();
            state.end.get_or_insert_with(|| cause.clone());
            state.newest.clone()
        };
        if let Some(newest) = newest {
            newest.end(None, &cause);
        }
        self.more.notify_all();
    }

    /// Sends a message to the launcher.
    pub(super) fn send(&self, request: &MemberRequest) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.write_all(&request.write())
    }

    /// Returns the number of a new request, whose answer replaces the last one.
    pub(super) fn next_request(&self) -> usize {
        let mut state = self.state();
        state.request += 1;
        state.answer = None;
        state.request
    }

    /// Waits at most `limit`, while `waits` returns true. Returns the answer to the last request, if there is one.
    pub(super) fn wait_while(
        &self,
        limit: Duration,
        waits: impl FnMut(&mut LinkState) -> bool,
    ) -> Option<Vec<u8>> {
        let mut state = runtime::wait_while(&self.more, &self.state, limit, waits);
        state.answer.take()
    }

    /// Reports that this process has left its world, and waits for its next generation: at most `limit` and the time for which
    /// the launcher waits for the other processes.
    ///
    /// # Errors
    /// [`Error::Setup`] if the job ends, or no generation begins in time.
    pub(crate) fn next_generation(&self, limit: Duration) -> Result<Arc<Generation>> {
        let before = self.state().newest();
        // Without the launcher, the state has the reason.
        let _ = self.send(&MemberRequest::Ready);
        let is_unknown = |state: &mut LinkState| state.end.is_none() && state.rejoin_wait.is_none();
        let rejoin_wait = runtime::wait_while(&self.more, &self.state, limit, is_unknown).rejoin_wait;
        let limit = limit.saturating_add(rejoin_wait.unwrap_or_default());
        let waits = |state: &mut LinkState| state.end.is_none() && state.newest() == before;
        let state = runtime::wait_while(&self.more, &self.state, limit, waits);
        match (&state.end, &state.newest) {
            (Some(end), _) => Err(Error::setup(
                format!("this process cannot join a generation: {end}"),
                "see the output of the launcher, and start the job again",
            )),
            (None, Some(newest)) if newest.number != before => Ok(Arc::clone(newest)),
            _ => Err(Error::setup(
                format!("no generation after {before} has begun within {limit:?}"),
                "check that the other processes call `World::join` or `World::next`, or raise JoinOptions::deadline",
            )),
        }
    }
}

/// Creates the error of a process that is not a member.
fn no_member(what: String) -> Error {
    let remedy = format!(
        "start each process by `hexagram run --elastic`, through wrappers that keep descriptors open, or unset {MEMBERSHIP}"
    );
    Error::setup(format!("{MEMBERSHIP} {what}"), remedy)
}

/// Takes over the descriptor that the launcher left open for this process, after a check that it leads to the launcher.
fn inherit(descriptor: RawFd) -> io::Result<UnixStream> {
    let refused = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    if descriptor <= 2 {
        return Err(refused("not above 2"));
    }
    // SAFETY: not -1, and borrowed only for the checks below; a closed descriptor fails them with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let other_end = sockopt::socket_peercred(borrowed)?.pid.as_raw_nonzero().get();
    if last_launcher() != Some(other_end) {
        return Err(refused("not a connection to the launcher of this process"));
    }
    rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: a socket that the launcher opened for this process; only this function takes it, once.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }.into())
}
