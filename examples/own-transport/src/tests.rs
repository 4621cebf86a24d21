//! Transports with a defect, under separate names: each must end in an error that names the rank and the remedy.

use crate::{Inboxes, Waiting, loopback};
use hexagram::asynchronous::{Clock, Service};
use hexagram::physical::fingerprint::{Fingerprint, OperationKind};
use hexagram::physical::health::Health;
use hexagram::physical::memory::{ReadView, WriteView};
use hexagram::physical::tag::Tag;
use hexagram::physical::testing::{spawn as spawn_worlds, spawn_as, transport as testing_transport};
use hexagram::physical::transport::native::Collectives;
use hexagram::physical::transport::{
    Backend, Bell, Fabric, Label, Membership, Prepared, ReceiveMode, Received, Site, Source, Ticket, Traffic,
    Transport, TransportKind, register,
};
use hexagram::{Buffer, Communicator, DType, Error, JoinOptions, ReduceOp, Result, World, testing};
use std::any::Any;
use std::cell::Cell;
use std::panic::catch_unwind;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Rank whose endpoints have the defect.
const CULPRIT: usize = 1;
/// Number of sends or polls that still work.
const GOOD: usize = 20;

/// Defect of a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    /// Posting a send panics.
    PanicInSend,
    /// Polling panics.
    PanicInPoll,
    /// Messages count as sent, but are lost.
    Loss,
    /// Start-up panics when it connects.
    PanicInConnect,
    /// As before, and the other ranks connect only when the culprit has gone.
    PanicBeforeOthers,
    /// An announcement is longer than may be.
    LongAnnouncement,
    /// Operations name a rank that does not exist.
    NoSuchRank,
    /// Messages claim more bytes than the buffer holds.
    TooManyBytes,
    /// Operations claim to wait for a rank that does not exist.
    NoSuchPeer,
}

impl Backend for Defect {
    fn prepare(&self, _site: &Site<'_>) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(Before { defect: *self, inner: Waiting(Inboxes::open()) }))
    }
}

struct Before {
    defect: Defect,
    inner: Waiting,
}

impl Prepared for Before {
    fn announcement(&self) -> Vec<u8> {
        let mut announcement = self.inner.announcement();
        if self.defect == Defect::LongAnnouncement {
            announcement.resize(5000, 0);
        }
        announcement
    }

    fn connect(self: Box<Self>, member: Arc<Membership>) -> Result<Arc<dyn Fabric>> {
        let is_culprit = member.rank() == CULPRIT;
        let panics = matches!(self.defect, Defect::PanicInConnect | Defect::PanicBeforeOthers);
        assert!(!is_culprit || !panics, "on purpose");
        if self.defect == Defect::PanicBeforeOthers {
            let number = member.announcement(CULPRIT)[4..].try_into().map(u32::from_le_bytes).unwrap();
            while Inboxes::find(number).is_some() {
                std::thread::yield_now();
            }
        }
        let inner = Box::new(self.inner).connect(member)?;
        Ok(Arc::new(Connected { defect: is_culprit.then_some(self.defect), inner }))
    }
}

struct Connected {
    defect: Option<Defect>,
    inner: Arc<dyn Fabric>,
}

impl Fabric for Connected {
    fn open(&self, channel: u16, ranks: &[usize]) -> Result<Rc<dyn Transport>> {
        Ok(Rc::new(End { defect: self.defect, used: Cell::new(0), inner: self.inner.open(channel, ranks)? }))
    }

    fn health(&self) -> &Arc<Health> {
        self.inner.health()
    }

    fn traffic(&self) -> &Arc<Traffic> {
        self.inner.traffic()
    }
}

/// An endpoint that hands everything on until its defect shows.
struct End {
    defect: Option<Defect>,
    used: Cell<usize>,
    inner: Rc<dyn Transport>,
}

impl End {
    /// Returns true if the endpoint has this defect, and has been used so often that it shows.
    fn shows(&self, defect: Defect) -> bool {
        let has_it = self.defect == Some(defect);
        self.used.set(self.used.get() + usize::from(has_it));
        has_it && self.used.get() > GOOD
    }
}

impl Transport for End {
    fn kind(&self) -> TransportKind {
        self.inner.kind()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn health(&self) -> &Arc<Health> {
        self.inner.health()
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.inner.bell()
    }

    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        assert!(!self.shows(Defect::PanicInSend), "on purpose");
        // A message to itself needs no wait.
        let to = if self.shows(Defect::Loss) { self.rank() } else { to };
        self.inner.post_send(to, label, view)
    }

    fn post_recv(&self, from: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket {
        self.inner.post_recv(from, label, view, land)
    }

    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Received>> {
        assert!(!self.shows(Defect::PanicInPoll), "on purpose");
        let said = |got| match self.defect {
            Some(Defect::NoSuchRank) => Received { peer: 7, ..got },
            Some(Defect::TooManyBytes) => Received { bytes: usize::MAX, ..got },
            _ => got,
        };
        self.inner.poll(ticket, context).map_ok(said)
    }

    fn cancel(&self, ticket: Ticket) {
        self.inner.cancel(ticket);
    }

    fn progress(&self) -> bool {
        self.inner.progress()
    }

    fn crowded(&self) -> bool {
        self.inner.crowded()
    }

    fn park(&self, at_most: Duration) {
        self.inner.park(at_most);
    }

    fn ended(&self, peer: usize) -> Option<String> {
        self.inner.ended(peer)
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        self.inner.moved(ticket)
    }

    fn native(&self) -> Option<&dyn Collectives> {
        (self.defect == Some(Defect::NoSuchPeer)).then_some(self as &dyn Collectives)
    }
}

/// Collectives that are never offered, and wait for a rank that does not exist.
impl Collectives for End {
    fn offers(&self, _: &Label, _: &[usize], _: Option<&ReadView>, _: &WriteView) -> bool {
        false
    }

    fn post(&self, _: Label, _: &Arc<[usize]>, _: Option<ReadView>, _: WriteView) -> Ticket {
        unreachable!("nothing is offered")
    }

    fn missing(&self, _: Ticket) -> Vec<usize> {
        vec![7]
    }
}

/// Sums over all ranks until one fails; the culprit stops after `times`.
fn sums(comm: &Communicator, times: usize) -> Error {
    let times = if comm.rank() == CULPRIT { times } else { usize::MAX };
    for _ in 0..times {
        let mut data = vec![1f32; 100];
        if let Err(error) = comm.blocking().all_reduce(&mut data, ReduceOp::Sum) {
            return error;
        }
    }
    Error::usage("nothing has failed", "nothing")
}

fn text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

#[test]
fn a_rank_that_goes_away_in_the_middle_is_named_by_all_others() {
    let errors = testing::spawn(loopback().unwrap(), 3, |comm| Ok(sums(&comm, 7).to_string())).unwrap();
    for rank in [0, 2] {
        let error = &errors[rank];
        assert!(error.contains("rank 1 (host") && error.contains("finished"), "{error}");
        assert!(
            error.contains("all_reduce(100 × f32, sum), operation #") && error.contains("restarted"),
            "{error}"
        );
    }
}

#[test]
fn a_transport_that_panics_ends_its_rank_and_the_others_name_it() {
    for (name, defect) in [("panics-in-send", Defect::PanicInSend), ("panics-in-poll", Defect::PanicInPoll)] {
        let kind = register(name, defect).unwrap();
        let panic = catch_unwind(|| {
            testing::spawn(kind, 3, |comm| {
                let error = sums(&comm, usize::MAX);
                assert_ne!(comm.rank(), CULPRIT, "it went on after a panic: {error}");
                let is_named = matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == CULPRIT);
                assert!(is_named && error.to_string().contains("panic"), "{name}: {error}");
                Ok(())
            })
        });
        assert_eq!(text(panic.unwrap_err()), "on purpose", "{name}");
    }
}

/// Waits for the clock of the slowest rank, over and over, until something fails.
fn clocks(comm: &Communicator) -> Result<()> {
    let service = comm.block_on(Service::start(comm))?;
    let clock = comm.block_on(Clock::start(comm, &service, 0))?;
    loop {
        clock.blocking().wait()?;
        clock.tick();
    }
}

/// Fails unless the culprit's error is about its transport, and the other's names the culprit.
fn assert_is_the_transports(errors: &[Error], said: &str) {
    let text = errors[CULPRIT].to_string();
    assert!(text.contains(said) && text.contains("correct the transport"), "{text}");
    let is_named = matches!(&errors[0], Error::PeerFailed { culprit, .. } if culprit.rank == CULPRIT);
    assert!(is_named, "{}", errors[0]);
}

#[test]
fn an_outcome_that_cannot_be_is_the_transports_fault() {
    let kind = register("no-such-rank", Defect::NoSuchRank).unwrap();
    let errors = testing::spawn(kind, 2, |comm| Ok(sums(&comm, usize::MAX))).unwrap();
    assert_is_the_transports(&errors, "of rank 7, among 2 ranks");
    let kind = register("too-many-bytes", Defect::TooManyBytes).unwrap();
    let errors = testing::spawn(kind, 2, |comm| Ok(clocks(&comm).unwrap_err())).unwrap();
    assert_is_the_transports(&errors, "of rank 0, among 2 ranks and room for");
    let kind = register("no-such-peer", Defect::NoSuchPeer).unwrap();
    let errors = spawn_worlds(kind, 2, |world| {
        let end = testing_transport::End::new(world);
        let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::F32, 1);
        let label = Label { tag: Tag::new(0, 0, 0, 0).unwrap(), fingerprint };
        let buffer = Buffer::zeroed(DType::F32, 1).unwrap();
        end.wait(end.recv(Source::Any, label, &buffer, ReceiveMode::Copy)).unwrap_err()
    });
    assert_is_the_transports(&errors, "waits for rank 7, which does not exist");
}

#[test]
fn a_message_that_is_lost_is_a_deadline_that_names_rank_and_operation() {
    let kind = register("loses", Defect::Loss).unwrap();
    let errors = testing::spawn(kind, 2, |comm| {
        let long = Duration::from_secs(30);
        comm.set_deadline(if comm.rank() == 0 { Duration::from_millis(300) } else { long });
        Ok(sums(&comm, usize::MAX))
    });
    let errors = errors.unwrap();
    let text = errors[0].to_string();
    let is_named =
        matches!(&errors[0], Error::Deadline { waiting_for: Some(peer), .. } if peer.rank == CULPRIT);
    assert!(
        is_named && text.contains("rank 1 (host") && text.contains("all_reduce(100 × f32, sum), operation #"),
        "{text}"
    );
    assert!(matches!(&errors[1], Error::PeerFailed { culprit, .. } if culprit.rank == 0), "{}", errors[1]);
}

#[test]
fn what_goes_wrong_as_ranks_join_is_told_by_name() {
    let with = |transport| JoinOptions { transport, ..JoinOptions::default() };
    let join = |options: &[JoinOptions]| text(catch_unwind(|| spawn_as(options, |_| ())).unwrap_err());
    let differ = join(&[with(loopback().unwrap()), with(TransportKind::Tcp)]);
    assert!(differ.contains("transport tcp, rank 0 uses loopback"), "{differ}");
    let long = join(&[with(register("announces-too-much", Defect::LongAnnouncement).unwrap())]);
    assert!(long.contains("announces 5000 bytes") && long.contains("2048 at most"), "{long}");
    let unknown = "loop-back".parse::<TransportKind>().unwrap_err().to_string();
    assert!(unknown.contains("`loop-back`") && unknown.contains("loopback, "), "{unknown}");
}

#[test]
fn a_transport_that_panics_as_it_connects_is_its_ranks_failure() {
    let defects =
        [("panics-in-connect", Defect::PanicInConnect), ("panics-before-others", Defect::PanicBeforeOthers)];
    for (name, defect) in defects {
        let kind = register(name, defect).unwrap();
        let panic = catch_unwind(|| {
            testing::spawn(kind, 3, |comm| {
                let error = sums(&comm, usize::MAX);
                let is_named = matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == CULPRIT);
                assert!(is_named && error.to_string().contains("panicked while joining"), "{error}");
                Ok(())
            })
        });
        assert_eq!(text(panic.unwrap_err()), "on purpose");
    }
}

/// Prints the error of a rank that is a process.
#[test]
#[ignore = "started as a process by the next test"]
fn one_process() {
    let options = JoinOptions { transport: loopback().unwrap(), ..JoinOptions::default() };
    eprintln!("{}", World::join(&options).err().unwrap());
}

#[test]
fn ranks_that_are_processes_are_told_to_be_threads() {
    let address = format!("127.0.0.1:{}", testing::free_port());
    let start = |rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::one_process", "--ignored", "--nocapture"])
            .envs([("HEXAGRAM_SIZE", "2"), ("HEXAGRAM_ADDR", &address), ("HEXAGRAM_SILENCE", "30")])
            .env("HEXAGRAM_RANK", rank.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ranks = [0, 1].map(start);
    let errors = ranks.map(|rank| String::from_utf8(rank.wait_with_output().unwrap().stderr).unwrap());
    let is_told = |error: &String| error.contains("start all ranks of the loopback transport as threads");
    assert!(errors.iter().all(is_told), "{errors:#?}");
}
