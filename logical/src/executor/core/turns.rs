//! Turns of driving: the reactor moves between threads, and one thread has it at a time.
//!
//! ```text
//! submit     commands ← job; wakes the background thread, or rings the bell of whoever drives
//! wait       takes the reactor if it is there, and drives until its job is done; otherwise sleeps until its job is
//!            done or the reactor is there
//! background takes the reactor while there are jobs and nobody waits; puts it back when somebody does
//! put back   wakes whoever waits; if nobody does, and there are jobs, the background thread
//! ```

use super::{Core, CoreState, ShutdownStage};
use crate::executor::options::Driving;
use crate::executor::reactor::{Reactor, ReactorCommand};
use crate::runtime;
use crate::{Error, Result};
use hexagram_physical::drive::{self, Wait};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::task::Context;
use std::time::Duration;

/// Longest sleep of a waiting thread; any event ends it.
const TICK: Duration = Duration::from_millis(500);

thread_local! {
    /// Set while this thread drives an executor.
    static DRIVES: Cell<bool> = const { Cell::new(false) };
    /// Set on the background thread of an executor.
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

impl Core {
    /// Waits until `is_done`, for at most `limit`, and drives unless another thread does.
    pub(crate) fn wait(&self, is_done: &dyn Fn() -> bool, limit: Option<Duration>) -> Result<()> {
        self.check_process()?;
        self.check_thread("waits for another job")?;
        let start = runtime::now();
        let time_left = || match limit {
            _ if is_done() => Duration::ZERO,
            None => TICK,
            Some(limit) => limit.saturating_sub(start.elapsed()).min(TICK),
        };
        while !time_left().is_zero() {
            let mut state = self.lock();
            if self.may_drive()
                && let Some(reactor) = state.reactor.take()
            {
                drop(state);
                self.drive(reactor, &time_left);
                continue;
            }
            self.waiting.fetch_add(1, Ordering::AcqRel);
            if state.reactor.is_none() {
                // Asks the background thread to step back.
                self.bell.ring();
            }
            drop(state);
            let at_most = time_left();
            let sleeps = |state: &mut CoreState| !(is_done() || self.may_drive() && state.reactor.is_some());
            let state = runtime::wait_while(&self.changed, &self.state, at_most, sleeps);
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            drop(state);
        }
        self.hand_over();
        Ok(())
    }

    /// Fails on a driving thread, which would wait for itself.
    pub(super) fn check_thread(&self, what: &str) -> Result<()> {
        if DRIVES.get() {
            let what = format!("a job or callback of an executor {what}");
            return Err(Error::usage(what, "do that on a different thread"));
        }
        Ok(())
    }

    /// Returns true if this thread may take the reactor.
    fn may_drive(&self) -> bool {
        self.options.driving == Driving::Waiting || IS_BACKGROUND.get()
    }

    /// Drives until `time_left` is zero, and puts the reactor back.
    fn drive(&self, reactor: Reactor, time_left: &dyn Fn() -> Duration) {
        let mut turn = DriverTurn { core: self, reactor: Some(reactor) };
        DRIVES.set(true);
        let Some(reactor) = &mut turn.reactor else { return };
        let waker = drive::waker();
        let mut context = Context::from_waker(&waker);
        let mut wait = Wait::default();
        loop {
            let commands = self.take_commands();
            let ended = reactor.step(commands, &mut context);
            if ended > 0 {
                self.end_jobs(ended);
                wait = Wait::default();
            }
            let at_most = time_left();
            if at_most.is_zero() {
                return;
            }
            wait.round_within(reactor.endpoint(), at_most);
        }
    }

    fn take_commands(&self) -> Vec<ReactorCommand> {
        if !self.has_commands.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = self.lock();
        self.has_commands.store(false, Ordering::Release);
        std::mem::take(&mut state.commands)
    }

    /// Subtracts ended jobs, and wakes the threads that wait for them.
    fn end_jobs(&self, ended: usize) {
        let _state = self.lock();
        self.pending.fetch_sub(ended, Ordering::AcqRel);
        if self.waiting() > 0 {
            self.changed.notify_all();
        }
    }

    /// Wakes the next driving thread: a waiting thread, or else the background thread if there is work.
    fn hand_over(&self) {
        let state = self.lock();
        if state.reactor.is_none() {
            return;
        }
        if self.waiting() > 0 {
            self.changed.notify_all();
        } else if self.has_work(&state) {
            self.work.notify_one();
        }
    }

    fn has_work(&self, state: &CoreState) -> bool {
        self.pending() > 0 || !state.commands.is_empty() || state.stage == ShutdownStage::Over
    }

    /// Runs the background thread, from its beginning to its end.
    pub(super) fn background(&self) {
        IS_BACKGROUND.set(true);
        drive::beside_computation();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.serve())) {
            // A transport or a device is broken: threads must not wait for it.
            self.lock().stage = ShutdownStage::Closing;
            self.abort(Error::panicked("the thread of an executor", &*panic));
            let _ = self.wait(&|| self.pending() == 0, None);
            let reactor = self.lock().reactor.take();
            drop(reactor);
        }
    }

    /// Drives while no thread waits, until the executor ends.
    fn serve(&self) {
        loop {
            let is_alone = || self.options.driving == Driving::OneThread || self.waiting() == 0;
            let may_drive = |state: &CoreState| state.reactor.is_some() && is_alone() && self.has_work(state);
            let sleeps = |state: &mut CoreState| !(self.is_to_finish(state) || may_drive(state));
            let mut state = runtime::wait_while(&self.work, &self.state, TICK, sleeps);
            if sleeps(&mut state) {
                continue;
            }
            if self.is_to_finish(&state) {
                drop(state);
                // The error of abandoned jobs has no recipient.
                let _ = self.finish(self.options.linger);
                continue;
            }
            let Some(reactor) = state.reactor.take() else { continue };
            if state.stage == ShutdownStage::Over {
                drop(state);
                return drop(reactor);
            }
            drop(state);
            let goes_on = || is_alone() && self.pending() > 0 && !self.is_left.load(Ordering::Acquire);
            self.drive(reactor, &|| if goes_on() { TICK } else { Duration::ZERO });
        }
    }
}

/// The turn of a thread to drive. Its end puts the reactor back, even if the thread panics.
struct DriverTurn<'a> {
    core: &'a Core,
    reactor: Option<Reactor>,
}

impl Drop for DriverTurn<'_> {
    fn drop(&mut self) {
        DRIVES.set(false);
        self.core.lock().reactor = self.reactor.take();
        self.core.hand_over();
    }
}
