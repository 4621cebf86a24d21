//! Deferral: until when the rates of flows may stay as they are.
//!
//! If a flow begins or ends on a link with many flows, the rates of the others hardly change. If a hundred ranks send to all
//! others, thousands of flows begin or end within a hundredth of the duration of one. So a flow that gets only a small part of
//! its links waits for its rate, and the share of an ended flow is redistributed slightly later. Both delays are [`PATIENCE`]
//! times the duration of the flow. Larger changes are shared immediately.

use super::{Flows, LARGEST, LinkNumber};
use crate::sim::schedule::agenda::Nanoseconds;
use std::ops::Range;

/// Share of the duration of a flow for which it waits for its rate, or for which its share stays unused after its end.
const PATIENCE: f64 = 0.01;

/// Largest part of a link that stays unused for that time.
const PART: f64 = 1.0 / 16.0;

/// Divisor of the time of a flow that continues with further bytes: its end is entered in the agenda at the latest
/// after that part.
const UNTOLD: Nanoseconds = 64;

/// Links on which a flow has begun or ended since rates were last computed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Links that are shared anew before time passes.
    pub(super) urgent: Vec<LinkNumber>,
    /// Links that are shared anew when the first of them must be.
    pub(super) deferred: Vec<LinkNumber>,
    /// Time at which that is.
    pub(super) deferred_until: Option<Nanoseconds>,
    /// Time at which rates must be computed, if anything has changed.
    pub(super) due: Option<Nanoseconds>,
}

/// Returns the earlier one.
fn earlier(before: Option<Nanoseconds>, at: Nanoseconds) -> Option<Nanoseconds> {
    Some(before.map_or(at, |before| before.min(at)))
}

impl Changes {
    /// Adds links to share anew after a wait, possibly zero.
    pub(super) fn add(&mut self, now: Nanoseconds, wait: f64, links: &[LinkNumber]) {
        let at = now.saturating_add(wait as Nanoseconds);
        if at > now {
            self.deferred.extend(links);
            self.deferred_until = earlier(self.deferred_until, at);
        } else {
            self.urgent.extend(links);
        }
        self.share_by(at);
    }

    /// Schedules a computation of rates, at the latest at this time.
    fn share_by(&mut self, at: Nanoseconds) {
        self.due = earlier(self.due, at);
    }

    /// Schedules an entry in the agenda for the end of a flow that continues for this time.
    pub(super) fn has_renewed(&mut self, now: Nanoseconds, lasts: Nanoseconds) {
        self.share_by(now + lasts / UNTOLD);
    }

    /// Begins to compute rates: links that need not wait longer are urgent.
    pub(super) fn begin(&mut self, now: Nanoseconds) {
        if self.deferred_until.is_some_and(|until| until <= now) {
            self.urgent.append(&mut self.deferred);
            self.deferred_until = None;
        }
        self.due = self.deferred_until;
    }
}

impl Flows {
    /// Returns the time at which rates must be computed, if anything has changed.
    pub(crate) fn share_at(&self) -> Option<Nanoseconds> {
        self.changes.due
    }

    /// Schedules a new share of the links on which a flow has begun.
    pub(super) fn has_begun(&mut self, now: Nanoseconds, links: Range<usize>, bytes: usize) {
        let links = &self.routes[links];
        let rate = links.iter().map(|link| self.next_rate(*link)).fold(LARGEST, f64::min);
        let is_part = |link: &LinkNumber| rate <= PART * self.wires[*link as usize].capacity;
        let is_small = rate > 0.0 && links.iter().all(is_part);
        let wait = if is_small { PATIENCE * bytes as f64 / rate } else { 0.0 };
        self.changes.add(now, wait, links);
    }

    /// Returns the approximate rate of a new flow on a link.
    fn next_rate(&self, link: LinkNumber) -> f64 {
        let wire = &self.wires[link as usize];
        let even = wire.capacity / wire.flows.len() as f64;
        let free = if wire.limited > 0 { wire.level } else { wire.capacity - wire.used };
        even.max(free)
    }

    /// Schedules a new share of the links on which a flow has ended that took this time.
    pub(super) fn has_ended(&mut self, now: Nanoseconds, links: Range<usize>, took: Nanoseconds) {
        let links = &self.routes[links];
        let is_small = |link: &LinkNumber| {
            let wire = &self.wires[*link as usize];
            wire.idle <= PART * wire.capacity
        };
        let wait = if links.iter().all(is_small) { PATIENCE * took as f64 } else { 0.0 };
        self.changes.add(now, wait, links);
    }
}
