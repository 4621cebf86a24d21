//! The schedule: which thread of a simulated world runs next, and when.
//!
//! One thread runs at a time, until it waits. When all wait, the clock moves to the next event of the agenda.
//! [`Rates`] charge the arithmetic of a thread: its own clock advances beyond that of the world, its messages leave
//! at that time, and its next wait lasts at least until then. Two threads of a rank thus compute at the same time, as
//! on two cores.
//!
//! A thread that waits for a change of memory by other threads of its rank runs again after each turn of those threads.

pub(super) mod agenda;
mod bells;
mod datagrams;
mod faults;
pub(super) mod fiber;
pub(super) mod job;
mod runtime;

use super::cluster::fault::Fault;
use super::mailbox::{BoxNumber, DeliveredMail};
use super::network::messages::SimulatedMessage;
use super::network::rates::Rates;
use super::network::wires::{Flaw, MessageEvent, Wires};
use super::sockets::Sockets;
use crate::error::{Error, Result};
use crate::transport::Ticket;
use crate::waiting::drive;
use agenda::{Agenda, Nanoseconds, from_seconds, nanoseconds};
use faults::Condition;
use fiber::Fiber;
use std::collections::VecDeque;
use std::mem;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Remedy if memory for a stack is missing.
const FEWER: &str =
    "simulate fewer ranks, or raise vm.max_map_count, of which each takes four, and a limit of memory";

/// Number of a thread, in the order of their starts.
type ThreadNumber = usize;

/// An event at a time.
pub(super) enum ScheduledEvent {
    /// A thread may have waited long enough.
    Wake(ThreadNumber),
    Wires(MessageEvent),
    /// The bell of a rank rings, by a thread whose own clock was ahead.
    Ring(usize),
    /// The same, by a thread of another rank.
    News(usize),
    /// The fault of this number.
    Fault(usize),
}

impl From<MessageEvent> for ScheduledEvent {
    fn from(event: MessageEvent) -> Self {
        ScheduledEvent::Wires(event)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// It runs, or is about to.
    Ready,
    /// Until its time.
    Asleep,
    /// For a message, a bell, or a future.
    Parked,
    /// For a change by other threads of its rank.
    Looking,
    Ended,
}

struct SimulatedThread {
    rank: usize,
    wait: Pause,
    /// End of the wait.
    until: Nanoseconds,
    /// First time at which it is in the agenda; the end of time if it is not.
    due: Nanoseconds,
    /// Another time of its entry in the agenda, or the end of time.
    later: Nanoseconds,
    /// Its own clock, if that is later than the world's.
    ahead: Nanoseconds,
    /// Its poll function, while it waits with one.
    look: Option<Predicate>,
    /// Set once that has been found.
    found: bool,
    /// Set by a bell that rang while it was not parked: its next park ends immediately.
    rung: bool,
}

/// Poll function of a waiting thread, on the stack of that thread.
#[derive(Clone, Copy)]
struct Predicate(NonNull<dyn FnMut() -> bool>);

// SAFETY: it is called on the thread that runs the schedule, which also runs the waiting thread.
unsafe impl Send for Predicate {}

type BeginThread = Box<dyn FnOnce() + Send>;

struct SimulatedWorld {
    now: Nanoseconds,
    agenda: Agenda<ScheduledEvent>,
    threads: Vec<SimulatedThread>,
    /// Threads of each rank that have not ended.
    of_rank: Vec<Vec<ThreadNumber>>,
    /// Number of rings of each rank's bell so far.
    rings: Vec<u64>,
    /// By rank: true if the agenda has news for it.
    has_news: Vec<bool>,
    ready: VecDeque<ThreadNumber>,
    running: ThreadNumber,
    begun: Vec<(ThreadNumber, BeginThread)>,
    living: usize,
    /// Ranks that must check for changes after an event.
    told: Vec<usize>,
    wires: Wires,
    rates: Rates,
    /// All faults; the agenda has their times.
    faults: Vec<Fault>,
    /// Number of faults that have not happened.
    faults_left: usize,
    /// By rank; empty in a world without faults, in which ranks do not fail.
    conditions: Vec<Condition>,
    /// Threads of stopped ranks that would run.
    held: Vec<ThreadNumber>,
    sockets: Sockets,
    /// Ranks with events that a thread may check.
    to_look: Vec<usize>,
    /// Time at which the run ends, even if threads still run.
    limit: Nanoseconds,
    /// Latest time up to which an ended thread had computed.
    end: Nanoseconds,
    flaw: Option<Flaw>,
    heartbeats: u64,
}

/// Step of a run.
enum NextTurn {
    /// A thread has its turn.
    Run(ThreadNumber),
    /// Threads of a rank check whether their wait has ended.
    Look(usize),
    /// No event is left.
    Nothing,
}

/// Counts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) elapsed: Duration,
    pub(super) events: u64,
    pub(super) fingerprint: u64,
}

/// The clock, the threads and the messages of a simulated world.
pub(super) struct Simulator(Mutex<SimulatedWorld>);

impl SimulatedWorld {
    /// Returns the time of the running thread, which may be ahead of that of the world.
    fn local_time(&self) -> Nanoseconds {
        self.threads.get(self.running).map_or(self.now, |thread| thread.ahead.max(self.now))
    }

    fn begin(&mut self, rank: usize, work: BeginThread) {
        let number = self.threads.len();
        let ahead = self.local_time();
        self.threads.push(SimulatedThread {
            rank,
            wait: Pause::Asleep,
            until: ahead,
            due: Nanoseconds::MAX,
            later: Nanoseconds::MAX,
            ahead,
            look: None,
            found: false,
            rung: false,
        });
        self.of_rank[rank].push(number);
        self.begun.push((number, work));
        self.living += 1;
        self.arm(number);
    }

    /// Puts the end of a thread's wait on the agenda, unless the agenda has an earlier check of the thread.
    fn arm(&mut self, number: ThreadNumber) {
        let thread = &mut self.threads[number];
        if thread.until <= self.now {
            thread.wait = Pause::Ready;
            self.ready.push_back(number);
        } else if thread.until < thread.due {
            thread.later = mem::replace(&mut thread.due, thread.until);
            self.agenda.add(thread.until, ScheduledEvent::Wake(number));
        }
    }

    /// Makes the running thread wait.
    fn wait(&mut self, wait: Pause, at_most: Duration) {
        let now = self.now;
        let thread = &mut self.threads[self.running];
        let is_over = wait == Pause::Parked && mem::take(&mut thread.rung);
        let at_most = if is_over { 0 } else { nanoseconds(at_most) };
        if thread.ahead > now && wait == Pause::Looking {
            // It computes until then, and checks for changes afterwards.
            thread.wait = Pause::Asleep;
            thread.until = thread.ahead;
        } else {
            thread.wait = wait;
            thread.until = thread.ahead.max(now).saturating_add(at_most);
        }
        if thread.until < Nanoseconds::MAX {
            self.arm(self.running);
        }
    }

    /// Ends the wait of a thread, after the end of its computation.
    fn wake(&mut self, number: ThreadNumber) {
        let thread = &mut self.threads[number];
        thread.wait = Pause::Asleep;
        thread.until = thread.ahead;
        self.arm(number);
    }

    /// Ends a turn; returns the rank of its thread.
    fn has_run(&mut self, number: ThreadNumber, has_ended: bool) -> usize {
        let rank = self.threads[number].rank;
        if has_ended {
            self.threads[number].wait = Pause::Ended;
            self.end = self.end.max(self.threads[number].ahead);
            self.of_rank[rank].retain(|other| *other != number);
            self.living -= 1;
        }
        self.collect(number);
        rank
    }

    /// Returns the first polling thread of a rank among those from index `from` on, except the thread `but`, which has
    /// just run: its index, its number and its poll function.
    fn looking(
        &self,
        rank: usize,
        but: ThreadNumber,
        from: usize,
    ) -> Option<(usize, ThreadNumber, Predicate)> {
        let others = self.of_rank[rank].iter().enumerate().skip(from).filter(|(_, other)| **other != but);
        let mut looking = others.filter(|(_, other)| self.threads[**other].wait == Pause::Looking);
        looking.find_map(|(at, other)| Some((at, *other, self.threads[*other].look?)))
    }

    /// Returns the next action.
    fn next(&mut self) -> NextTurn {
        loop {
            if let Some(rank) = self.to_look.pop() {
                return NextTurn::Look(rank);
            }
            if let Some(number) = self.ready.pop_front() {
                if self.is_stopped(number) {
                    self.held.push(number);
                    continue;
                }
                self.running = number;
                return NextTurn::Run(number);
            }
            if self.living == 0 {
                return NextTurn::Nothing;
            }
            self.end_stopped();
            let next = self.agenda.next_time();
            if let Some(at) = self.wires.share_at().filter(|at| *at <= self.limit)
                && next.is_none_or(|next| next > at)
            {
                self.now = at;
                self.wires.share(at, &mut self.agenda);
                continue;
            }
            if next.is_some_and(|next| next > self.limit) {
                return NextTurn::Nothing;
            }
            let Some((at, event)) = self.agenda.take() else { return NextTurn::Nothing };
            self.now = at;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: ScheduledEvent) {
        match event {
            ScheduledEvent::Wake(number) => {
                let now = self.now;
                let thread = &mut self.threads[number];
                if thread.due == now {
                    thread.due = mem::replace(&mut thread.later, Nanoseconds::MAX);
                }
                if !matches!(thread.wait, Pause::Ready | Pause::Ended) && thread.until < Nanoseconds::MAX {
                    self.arm(number);
                }
            }
            ScheduledEvent::Wires(event) => {
                let mut told = mem::take(&mut self.told);
                self.wires.happen(self.now, event, &mut self.agenda, |rank| told.push(rank));
                told.drain(..).for_each(|rank| self.wake_parked(rank));
                self.told = told;
                self.deliver();
            }
            ScheduledEvent::Ring(rank) => self.ring_threads(rank),
            ScheduledEvent::News(rank) => {
                self.has_news[rank] = false;
                self.ring_threads(rank);
            }
            ScheduledEvent::Fault(number) => {
                self.faults_left -= 1;
                let kind = self.faults[number].kind.clone();
                self.strike(kind);
            }
        }
    }
}

impl Simulator {
    pub(super) fn new(ranks: usize, wires: Wires, rates: Rates, seed: Option<u64>) -> Self {
        Simulator(Mutex::new(SimulatedWorld {
            now: 0,
            agenda: Agenda::new(seed),
            threads: Vec::new(),
            of_rank: vec![Vec::new(); ranks],
            rings: vec![0; ranks],
            has_news: vec![false; ranks],
            ready: VecDeque::new(),
            running: ThreadNumber::MAX,
            begun: Vec::new(),
            living: 0,
            told: Vec::new(),
            wires,
            rates,
            faults: Vec::new(),
            faults_left: 0,
            conditions: Vec::new(),
            held: Vec::new(),
            sockets: Sockets::new(ranks),
            to_look: Vec::new(),
            limit: Nanoseconds::MAX,
            end: 0,
            flaw: None,
            heartbeats: 0,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, SimulatedWorld> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread of a rank.
    pub(super) fn begin(&self, rank: usize, work: BeginThread) {
        self.lock().begin(rank, work);
    }

    /// Runs until all threads have ended.
    ///
    /// # Errors
    /// [`Error::System`] if memory for stacks runs out; [`Error::Usage`] if threads wait for events that never come.
    pub(super) fn run(&self) -> Result<Counts> {
        let mut fibers: Vec<Option<Fiber>> = Vec::new();
        loop {
            let (begun, next) = {
                let mut state = self.lock();
                let begun = mem::take(&mut state.begun);
                (begun, state.next())
            };
            for (number, work) in begun {
                fibers.resize_with(fibers.len().max(number + 1), || None);
                let fiber = Fiber::new(work);
                fibers[number] =
                    Some(fiber.map_err(|cause| Error::system("create the stack of a rank", cause, FEWER))?);
            }
            let number = match next {
                NextTurn::Nothing => break,
                NextTurn::Look(rank) => {
                    self.look_as(rank, ThreadNumber::MAX);
                    continue;
                }
                NextTurn::Run(number) => number,
            };
            let Some(fiber) = &mut fibers[number] else { continue };
            let has_ended = fiber.resume();
            if has_ended {
                fibers[number] = None;
            }
            let rank = self.lock().has_run(number, has_ended);
            self.look_as(rank, number);
        }
        self.ended()
    }

    /// Returns the counts of a run without further events.
    fn ended(&self) -> Result<Counts> {
        let state = self.lock();
        if state.living > 0 && state.limit == Nanoseconds::MAX {
            let waiting = state.threads.iter().filter(|thread| thread.wait != Pause::Ended);
            let mut ranks: Vec<usize> = waiting.map(|thread| thread.rank).collect();
            ranks.dedup();
            let what = format!("the simulated ranks {ranks:?} wait for events that never come");
            return Err(Error::usage(
                what,
                "wait with hexagram_physical::runtime, for events of other ranks",
            ));
        }
        let (events, fingerprint) = state.wires.counts();
        let elapsed = Duration::from_nanos(state.now.max(state.end));
        Ok(Counts { elapsed, events, fingerprint })
    }

    /// Returns the mailbox of a rank on a channel.
    pub(super) fn open(&self, channel: u16, rank: usize) -> BoxNumber {
        self.lock().wires.open(channel, rank)
    }

    /// Sends a message to a rank, at the time of the thread that does.
    pub(super) fn send(&self, from: BoxNumber, to: usize, message: SimulatedMessage) {
        let mut state = self.lock();
        let cost = state.rates.message.as_secs_f64() + message.bytes as f64 / state.rates.send;
        state.charge(cost);
        let at = state.local_time();
        let SimulatedWorld { wires, agenda, .. } = &mut *state;
        wires.send(at, from, to, message, agenda);
    }

    /// Charges the running thread for receiving a message.
    pub(super) fn receive(&self, bytes: usize) {
        let mut state = self.lock();
        let cost = state.rates.message.as_secs_f64() + bytes as f64 / state.rates.receive;
        state.charge(cost);
    }

    /// Exchanges the content of a mailbox for empty mail; returns false if there is none.
    pub(super) fn take_mail(&self, mailbox: BoxNumber, empty: &mut DeliveredMail) -> bool {
        self.lock().wires.mailbox(mailbox).take(empty)
    }

    /// Records that a future waits for the end of a send.
    pub(super) fn await_sent(&self, mailbox: BoxNumber, ticket: Ticket) {
        self.lock().wires.mailbox(mailbox).await_sent(ticket);
    }

    pub(super) fn cancel(&self, mailbox: BoxNumber, ticket: Ticket) {
        self.lock().wires.cancel(mailbox, ticket);
    }

    pub(super) fn is_awaited(&self, mailbox: BoxNumber, from: usize) -> bool {
        self.lock().wires.is_awaited(mailbox, from)
    }

    /// Polls the threads of a rank, except the one that has just run.
    fn look_as(&self, rank: usize, but: ThreadNumber) {
        let mut next = 0;
        loop {
            let looking = self.lock().looking(rank, but, next);
            let Some((at, other, look)) = looking else { return };
            self.look(other, look);
            next = at + 1;
        }
    }

    /// Polls a thread, and wakes it if its wait has ended.
    fn look(&self, number: ThreadNumber, Predicate(mut look): Predicate) {
        self.lock().running = number;
        // SAFETY: the thread waits in `look_until`, whose stack has the target of this pointer, and no other code
        // calls it.
        if unsafe { look.as_mut() }() {
            let mut state = self.lock();
            state.threads[number].found = true;
            state.wake(number);
        }
    }

    fn suspend(&self, wait: Pause, at_most: Duration) {
        self.lock().wait(wait, at_most);
        // The other threads poll futures of their own in between.
        drive::within_number(None, fiber::suspend);
    }
}

impl SimulatedWorld {
    /// Charges the running thread for this time, in seconds.
    fn charge(&mut self, seconds: f64) {
        if seconds > 0.0 {
            let end = self.local_time().saturating_add(from_seconds(seconds));
            if let Some(thread) = self.threads.get_mut(self.running) {
                thread.ahead = end;
            }
        }
    }
}
